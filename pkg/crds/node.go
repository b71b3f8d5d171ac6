package crds

func node() Definition {
	addressColumn := func(kind, description string) Column {
		return Column{Name: kind, Description: description, Type: "string", JSONPath: `.spec.addresses[?(@.type=="` + kind + `")].ip`}
	}
	return define(
		Names{Kind: "CiliumNode", Plural: ciliumNodes, Singular: "ciliumnode", ShortNames: []string{"cn", "ciliumn"}},
		"Cluster", status,
		[]Column{
			addressColumn("CiliumInternalIP", "Address of the node towards its pods"),
			addressColumn("InternalIP", "Address of the node"),
			age,
		},
		object("CiliumNode describes one node to all others. It is named as the Node is.", map[string]Schema{
			"spec":   nodeSpec(),
			"status": foreign("Written by operators of other networks; kept as it is."),
		}).require("spec"))
}

func nodeSpec() Schema {
	address := object("", map[string]Schema{
		"type": words("Kind of address: that of a Node's address, or CiliumInternalIP for the router."),
		"ip":   words("The address."),
	})
	return object("What a node says of itself, and the pod CIDRs it was given.", map[string]Schema{
		"addresses":  list("Addresses of the node.", address),
		"health":     addressPair("Addresses that answer health probes."),
		"ingress":    addressPair("Addresses of the node's ingress proxy."),
		"encryption": encryption("Key of the node."),
		"bootid":     words("Changes when the node boots."),
		"ipam": object("Pod addresses.", map[string]Schema{
			"podCIDRs":            list("CIDRs of the pods of this node, at most one of each family in use.", formatted("", "cidr")),
			"pool":                foreign("Kept as it is."),
			"ipv6-pool":           foreign("Kept as it is."),
			"pools":               foreign("Kept as it is."),
			"min-allocate":        count("Kept as it is."),
			"max-allocate":        count("Kept as it is."),
			"pre-allocate":        count("Kept as it is."),
			"max-above-watermark": count("Kept as it is."),
			"static-ip-tags":      dictionary("Kept as it is.", words("")),
		}),
		"instance-id":   words("Kept as it is."),
		"nodeidentity":  count("Kept as it is."),
		"eni":           foreign("Kept as it is."),
		"azure":         foreign("Kept as it is."),
		"alibaba-cloud": foreign("Kept as it is."),
	})
}

func addressPair(description string) Schema {
	return object(description, map[string]Schema{
		"ipv4": words("Empty when IPv4 is off."),
		"ipv6": words("Empty when IPv6 is off."),
	})
}

func encryption(description string) Schema {
	return object(description, map[string]Schema{"key": number("Index of the key; 0 means none.", 0, 255)})
}

// count returns the schema of an integer that is not negative.
func count(description string) Schema { return number(description, 0, 1<<32-1) }

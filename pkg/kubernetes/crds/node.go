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
		object("CiliumNode describes one node to all others. It has the name of the Node.", map[string]Schema{
			"spec":   nodeSpec(),
			"status": foreign("Written by operators of other networks; kept unchanged."),
		}).require("spec"))
}

func nodeSpec() Schema {
	address := object("", map[string]Schema{
		"type": words("Type of the address: a type of Node addresses, or CiliumInternalIP for the router."),
		"ip":   words("The address."),
	})
	return object("Properties that the node publishes, and the pod CIDRs assigned to it.", map[string]Schema{
		"addresses":  list("Addresses of the node.", address),
		"health":     addressPair("Addresses that answer health probes."),
		"ingress":    addressPair("Addresses of the node's ingress proxy."),
		"encryption": encryption("Key of the node."),
		"bootid":     words("Changes when the node boots."),
		"ipam": object("Pod addresses.", map[string]Schema{
			"podCIDRs":            list("CIDRs of the pods of this node, at most one of each family in use.", formatted("", "cidr")),
			"pool":                foreign("Kept unchanged."),
			"ipv6-pool":           foreign("Kept unchanged."),
			"pools":               foreign("Kept unchanged."),
			"min-allocate":        count("Kept unchanged."),
			"max-allocate":        count("Kept unchanged."),
			"pre-allocate":        count("Kept unchanged."),
			"max-above-watermark": count("Kept unchanged."),
			"static-ip-tags":      dictionary("Kept unchanged.", words("")),
		}),
		"instance-id":   words("Kept unchanged."),
		"nodeidentity":  count("Kept unchanged."),
		"eni":           foreign("Kept unchanged."),
		"azure":         foreign("Kept unchanged."),
		"alibaba-cloud": foreign("Kept unchanged."),
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

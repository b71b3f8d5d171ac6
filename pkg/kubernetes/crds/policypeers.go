package crds

// authentication returns the field of authentication, which only allowing entries have.
func authentication() map[string]Schema {
	return map[string]Schema{"authentication": object("Authentication of the peer.", map[string]Schema{
		"mode": oneOf("Mode of the authentication.", "disabled", "required", "test-always-fail"),
	}).require("mode")}
}

func ingressAllow() Schema { return ingress(allowedPorts()).with(authentication()) }
func egressAllow() Schema  { return egress(allowedPorts()).with(authentication()) }

// ingress returns the schema of an ingress entry. An entry with ports only applies to all peers, an entry with peers only to all ports.
func ingress(ports Schema) Schema {
	return object("", map[string]Schema{
		"fromEndpoints": list("Pods, in the policy's namespace unless they name another.", selector("")),
		"fromRequires":  list("Labels that every peer must have.", selector("")),
		"fromCIDR":      list("CIDRs or addresses.", cidr("")),
		"fromCIDRSet":   list("CIDRs with exceptions.", cidrSet()),
		"fromEntities":  list("Kinds of peers.", entity()),
		"fromGroups":    list("Groups of a cloud provider.", groups()),
		"fromNodes":     list("Nodes, by their labels.", selector("")),
		"toPorts":       ports,
		"icmps":         icmps(),
	})
}

// egress returns the schema of an egress entry.
func egress(ports Schema) Schema {
	return object("", map[string]Schema{
		"toEndpoints": list("Pods, in the policy's namespace unless they name another.", selector("")),
		"toRequires":  list("Labels that every peer must have.", selector("")),
		"toCIDR":      list("CIDRs or addresses.", cidr("")),
		"toCIDRSet":   list("CIDRs with exceptions.", cidrSet()),
		"toEntities":  list("Kinds of peers.", entity()),
		"toServices":  list("Services of Kubernetes.", service()),
		"toFQDNs":     list("Names of the DNS.", fqdn()),
		"toGroups":    list("Groups of a cloud provider.", groups()),
		"toNodes":     list("Nodes, by their labels.", selector("")),
		"toPorts":     ports,
		"icmps":       icmps(),
	})
}

// selector returns the schema of a label selector. Keys may begin with a source and a colon.
func selector(description string) Schema {
	expression := object("", map[string]Schema{
		"key":      words("Key of the label."),
		"operator": oneOf("Operator of the condition.", "In", "NotIn", "Exists", "DoesNotExist"),
		"values":   list("Values, for In and NotIn.", words("")),
	}).require("key", "operator")
	return object(description, map[string]Schema{
		"matchLabels":      dictionary("Required labels.", Schema{Type: "string", MaxLength: 63}),
		"matchExpressions": list("Conditions, all of which must be true.", expression),
	})
}

// strict rejects selectors that agents cannot parse, except for keys of matchLabels, which a schema cannot check. If the subject of a policy does not parse, a
// cluster-wide policy selects no endpoint, and any other policy isolates all pods of its namespace.
func strict(s Schema) Schema {
	key := matching("Key of the label; may begin with a source and a colon.", `^[^:]+(:.+)?$`)
	operators := func(values ...string) Schema { return Schema{Enum: values} }
	expression := s.Properties["matchExpressions"].Items.with(map[string]Schema{"key": key})
	expression.AnyOf = []Schema{
		{Properties: map[string]Schema{"operator": operators("In", "NotIn"), "values": {MinItems: 1}}, Required: []string{"values"}},
		{Properties: map[string]Schema{"operator": operators("Exists", "DoesNotExist"), "values": Schema{}.atMost(0)}},
	}
	return s.with(map[string]Schema{"matchExpressions": list(s.Properties["matchExpressions"].Description, expression)})
}

func cidr(description string) Schema {
	s := words(description)
	s.AnyOf = []Schema{{Format: "cidr"}, {Format: "ipv4"}, {Format: "ipv6"}}
	return s
}

// objectName matches names of objects.
const objectName = `^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`

func cidrSet() Schema {
	return object("", map[string]Schema{
		"cidr":              cidr("The CIDR."),
		"except":            list("CIDRs in it that are excluded.", cidr("")),
		"cidrGroupRef":      Schema{Type: "string", Description: "Name of a CiliumCIDRGroup.", Pattern: objectName, MaxLength: 253},
		"cidrGroupSelector": selector("CiliumCIDRGroups, by their labels."),
	}).exactlyOne("cidr", "cidrGroupRef", "cidrGroupSelector")
}

func entity() Schema {
	return oneOf("", "all", "world", "world-ipv4", "world-ipv6", "cluster", "host", "init", "ingress", "unmanaged", "remote-node",
		"health", "none", "kube-apiserver")
}

func service() Schema {
	namespace := words("Namespace of the Service; required in deny rules and in cluster-wide policies, otherwise by default the policy's.")
	return object("", map[string]Schema{
		"k8sService": object("A Service by name.", map[string]Schema{
			"serviceName": words("Name of the Service."), "namespace": namespace,
		}),
		"k8sServiceSelector": object("Services by labels.", map[string]Schema{
			"selector": selector("Labels of the Services."), "namespace": namespace,
		}).require("selector"),
	})
}

// groups returns the schema of the groups of a cloud provider, which are kept unchanged; the agent does not resolve them.
func groups() Schema {
	return object("", map[string]Schema{"aws": foreign("A group of AWS.")})
}

func fqdn() Schema {
	const name = `[-a-zA-Z0-9_.]+\.?`
	return object("", map[string]Schema{
		"matchName":    Schema{Type: "string", Description: "A complete name.", Pattern: `^(` + name + `)$`, MaxLength: 255},
		"matchPattern": Schema{Type: "string", Description: "A name in which * matches any characters.", Pattern: `^[-a-zA-Z0-9_.*]+$`, MaxLength: 255},
	}).exactlyOne("matchName", "matchPattern")
}

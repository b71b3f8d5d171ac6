package crds

func policy() Definition {
	return define(
		Names{Kind: "CiliumNetworkPolicy", Plural: ciliumNetworkPolicies, Singular: "ciliumnetworkpolicy",
			ShortNames: []string{"cnp", "ciliumnp"}, Categories: []string{"ciliumpolicy"}},
		"Namespaced", status, policyColumns(),
		policyObject("CiliumNetworkPolicy is a policy for pods of its namespace.", rule().require("endpointSelector")))
}

func clusterwidePolicy() Definition {
	nodes := map[string]Schema{"nodeSelector": selector("Nodes that the rule is for, by their labels.")}
	return define(
		Names{Kind: "CiliumClusterwideNetworkPolicy", Plural: ciliumClusterwideNetworkPolicies,
			Singular: "ciliumclusterwidenetworkpolicy", ShortNames: []string{"ccnp"}, Categories: []string{"ciliumpolicy"}},
		"Cluster", status, policyColumns(),
		policyObject("CiliumClusterwideNetworkPolicy is a policy for pods of all namespaces, or for nodes.",
			rule().with(nodes).exactlyOne("endpointSelector", "nodeSelector")))
}

func policyColumns() []Column {
	return []Column{age, {Name: "Valid", Type: "string", JSONPath: `.status.conditions[?(@.type=='Valid')].status`}}
}

// policyObject returns the schema of an object with one rule, several rules, or both. The API server keeps unknown fields of rules,
// because a rule without a field that narrows it would allow more. The agent detects unknown fields and does not enforce what an
// entry with such a field allows.
func policyObject(description string, rule Schema) Schema {
	rule = rule.keepUnknown()
	one := rule
	one.Description = "A rule."
	root := object(description, map[string]Schema{
		"spec":   one,
		"specs":  list("Rules, as if each stood in a policy of its own.", rule),
		"status": policyStatus(),
	})
	// With a status subresource the root of a schema must not have alternatives.
	root.Validations = []Validation{{Rule: "has(self.spec) || has(self.specs)", Message: "a policy needs spec or specs"}}
	return root
}

func policyStatus() Schema {
	condition := object("", map[string]Schema{
		"type":               words("Valid."),
		"status":             words("True, False or Unknown."),
		"reason":             words("One word for programs."),
		"message":            words("A sentence for people."),
		"lastTransitionTime": formatted("When the status changed.", "date-time"),
	}).require("type", "status")
	return object("What became of the policy.", map[string]Schema{
		"conditions":         list("Whether the policy can be understood.", condition),
		"derivativePolicies": foreign("Kept as it is."),
		"nodes":              foreign("Kept as it is."),
	})
}

// rule returns the schema of a policy rule with the fields that both kinds of policies have.
func rule() Schema {
	label := object("", map[string]Schema{
		"key": words("Key."), "value": words("Value."), "source": words("Source, for instance k8s."),
	}).require("key")
	return object("", map[string]Schema{
		"description":      words("For people."),
		"labels":           list("Labels of the rule, by which it is named in verdicts.", label),
		"endpointSelector": strict(selector("Pods that the rule is for.")),
		"enableDefaultDeny": object("Whether what no rule allows is denied; by default in the directions that the rule has.",
			map[string]Schema{"ingress": yes("To the pods."), "egress": yes("From the pods.")}),
		"ingress":     list("What may come in; an empty list, or an empty entry, allows nothing by itself.", ingressAllow()),
		"ingressDeny": list("What may not come in, whatever else allows it.", ingress(deniedPorts())),
		"egress":      list("What may go out.", egressAllow()),
		"egressDeny":  list("What may not go out, whatever else allows it.", egress(deniedPorts())),
		"log": object("Text that goes with verdicts of the rule.", map[string]Schema{
			"value": Schema{Type: "string", Description: "The text.", MaxLength: 32},
		}),
	})
}

package crds

func policy() Definition {
	return define(
		Names{Kind: "CiliumNetworkPolicy", Plural: ciliumNetworkPolicies, Singular: "ciliumnetworkpolicy",
			ShortNames: []string{"cnp", "ciliumnp"}, Categories: []string{"ciliumpolicy"}},
		"Namespaced", status, policyColumns(),
		policyObject("CiliumNetworkPolicy is a policy for pods of its namespace.", rule().require("endpointSelector")))
}

func clusterwidePolicy() Definition {
	nodes := map[string]Schema{"nodeSelector": selector("Nodes that the rule applies to, by their labels.")}
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
		"specs":  list("Rules; each has the effect of a separate policy.", rule),
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
		"reason":             words("Reason as one word, for programs."),
		"message":            words("Description of the status, for users."),
		"lastTransitionTime": formatted("Time of the last change of the status.", "date-time"),
	}).require("type", "status")
	return object("Status of the policy.", map[string]Schema{
		"conditions":         list("Whether the policy is valid.", condition),
		"derivativePolicies": foreign("Kept unchanged."),
		"nodes":              foreign("Kept unchanged."),
	})
}

// rule returns the schema of a policy rule with the fields that both kinds of policies have.
func rule() Schema {
	label := object("", map[string]Schema{
		"key": words("Key."), "value": words("Value."), "source": words("Source, for instance k8s."),
	}).require("key")
	return object("", map[string]Schema{
		"description":      words("Description of the rule, for users."),
		"labels":           list("Labels of the rule, which identify it in verdicts.", label),
		"endpointSelector": strict(selector("Pods that the rule applies to.")),
		"enableDefaultDeny": object("Whether traffic that no rule allows is denied; the default is the directions of the rule.",
			map[string]Schema{"ingress": yes("Traffic to the pods."), "egress": yes("Traffic from the pods.")}),
		"ingress":     list("Allowed traffic to the pods; an empty list, or an empty entry, allows nothing by itself.", ingressAllow()),
		"ingressDeny": list("Denied traffic to the pods, even if a rule allows it.", ingress(deniedPorts())),
		"egress":      list("Allowed traffic from the pods.", egressAllow()),
		"egressDeny":  list("Denied traffic from the pods, even if a rule allows it.", egress(deniedPorts())),
		"log": object("Text that is reported with verdicts of the rule.", map[string]Schema{
			"value": Schema{Type: "string", Description: "The text.", MaxLength: 32},
		}),
	})
}

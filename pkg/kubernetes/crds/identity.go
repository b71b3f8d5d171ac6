package crds

func identity() Definition {
	return define(
		Names{Kind: "CiliumIdentity", Plural: ciliumIdentities, Singular: "ciliumidentity", ShortNames: []string{"ciliumid"}},
		"Cluster", nil,
		[]Column{
			{Name: "Namespace", Description: "Namespace of the pods", Type: "string",
				JSONPath: `.metadata.labels.io\.kubernetes\.pod\.namespace`},
			age,
		},
		object("CiliumIdentity assigns a number, which is its name, to a set of labels.", map[string]Schema{
			"metadata": object("", map[string]Schema{"name": matching("The number, decimal.", `^[1-9][0-9]{0,9}$`)}),
			"security-labels": dictionary("Labels of the identity: source:key and value. They never change.",
				words("")),
		}).require("security-labels"))
}

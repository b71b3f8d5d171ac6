package crds

// cidrGroup is also served as v2alpha1, the version of Cilium before 1.18, because the API server rejects a definition without a version in which
// objects are stored.
func cidrGroup() Definition {
	d := define(
		Names{Kind: "CiliumCIDRGroup", Plural: ciliumCIDRGroups, Singular: "ciliumcidrgroup", ShortNames: []string{"ccg"}},
		"Cluster", nil, []Column{age},
		object("CiliumCIDRGroup is a list of CIDRs outside the cluster. Policies refer to it by its name or its labels.", map[string]Schema{
			"spec": object("Members of the group.", map[string]Schema{
				"externalCIDRs": list("CIDRs or addresses; an empty list is a group that matches nothing.", cidr("")),
			}).require("externalCIDRs"),
		}).require("spec"))
	previous := d.Spec.Versions[0]
	previous.Name, previous.Storage, previous.Deprecated = "v2alpha1", false, true
	d.Spec.Versions = append(d.Spec.Versions, previous)
	return d
}

package install

import (
	"slices"

	"github.com/waggle-net/waggle/pkg/crds"
)

// Account is a ServiceAccount.
type Account string

// The two ServiceAccounts: an agent on a node, and the replicas of the cluster role.
const (
	Agent   Account = "waggle"
	Cluster Account = "waggle-cluster"
)

// Permission is one use of the API server by one part of the program. The roles are generated from this table, so other verbs are rejected, and unused
// verbs must not be listed.
type Permission struct {
	Account  Account
	Cell     string // the cell that uses it
	Group    string // API group; empty for the core one
	Resource string // with an optional subresource after a slash
	Verbs    []string
	Why      string
	// Within limits the permission to the namespace that Waggle is installed in.
	Within bool
	// Names limits the permission to objects with these names. The verb create cannot be limited.
	Names []string
}

// Permissions returns all permissions.
func Permissions() []Permission {
	return append(agentPermissions(), clusterPermissions()...)
}

const ciliumGroup = "cilium.io"

var (
	follow = []string{"list", "watch"}
	create = []string{"create"}
	patch  = []string{"patch"}
	get    = []string{"get"}
	remove = []string{"delete"}
)

func agentPermissions() []Permission {
	agent := func(cell, group, resource string, verbs []string, why string) Permission {
		return Permission{Account: Agent, Cell: cell, Group: group, Resource: resource, Verbs: verbs, Why: why}
	}
	return []Permission{
		agent("k8stables", "", "nodes", follow, "this node's pod CIDRs and addresses, and those of all others"),
		agent("k8stables", "", "pods", follow, "pods of this node"),
		agent("k8stables", "", "namespaces", follow, "labels of namespaces are part of a pod's identity"),
		agent("k8stables", "", "services", follow, "services"),
		agent("k8stables", "discovery.k8s.io", "endpointslices", follow, "backends of services"),
		agent("k8stables", "networking.k8s.io", "networkpolicies", follow, "policies"),
		agent("k8stables", "networking.k8s.io", "ingresses", follow, "ingresses"),
		agent("k8stables", ciliumGroup, "ciliumnodes", follow, "addresses and pod CIDRs of all nodes"),
		agent("k8stables", ciliumGroup, "ciliumendpoints", follow, "pods of other nodes"),
		agent("k8stables", ciliumGroup, "ciliumendpointslices", follow, "pods of other nodes, with --enable-cilium-endpoint-slice"),
		agent("k8stables", ciliumGroup, "ciliumidentities", follow, "labels that stand behind identities"),
		agent("k8stables", ciliumGroup, "ciliumnetworkpolicies", follow, "policies"),
		agent("k8stables", ciliumGroup, "ciliumclusterwidenetworkpolicies", follow, "policies"),
		agent("k8stables", ciliumGroup, "ciliumcidrgroups", follow, "CIDRs to which policies refer"),
		agent("endpointmanager", "", "pods", get, "the pod of an ADD that comes before the watch"),
		agent("k8snode", "", "nodes", slices.Concat(get, patch), "this node's Node as it is now; taking the taint away"),
		agent("k8snode", "", "nodes/status", patch, "annotations and the conditions NetworkUnavailable and WaggleNetworkPathsDegraded of this node"),
		agent("ciliumnode", ciliumGroup, "ciliumnodes", slices.Concat(get, create, patch), "what this node says of itself"),
		agent("ciliumendpoints", ciliumGroup, "ciliumendpoints", slices.Concat(get, create, patch, remove), "this node's pods, for all other nodes"),
		agent("identity", ciliumGroup, "ciliumidentities", slices.Concat(get, create), "an identity for labels that have none; who has a number that is taken"),
		{Account: Agent, Cell: "crds", Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions", Verbs: get,
			Names: crds.NamesInCluster(), Why: "whether the custom resources are as this version needs them"},
	}
}

func clusterPermissions() []Permission {
	all := func(cell, group, resource string, verbs []string, why string) Permission {
		return Permission{Account: Cluster, Cell: cell, Group: group, Resource: resource, Verbs: verbs, Why: why}
	}
	return []Permission{
		all("clusterpool", ciliumGroup, "ciliumnodes", slices.Concat(get, follow, patch), "which nodes lack pod CIDRs, and giving them"),
		all("endpointgc", ciliumGroup, "ciliumnodes", []string{"list", "delete"}, "those of nodes that are gone"),
		all("endpointgc", ciliumGroup, "ciliumendpoints", []string{"list", "delete"}, "those of pods and nodes that are gone"),
		all("endpointgc", "", "pods", []string{"get", "list"}, "whether a CiliumEndpoint's pod exists; metadata alone"),
		all("endpointgc", "", "nodes", []string{"get", "list"}, "whether an object's node exists; metadata alone"),
		all("ciliumendpointslices", ciliumGroup, "ciliumendpoints", follow, "pods, for slices"),
		all("ciliumendpointslices", ciliumGroup, "ciliumendpointslices", slices.Concat(get, follow, create, []string{"update", "delete"}), "pods of the cluster, for agents"),
		all("policystatus", "networking.k8s.io", "networkpolicies", follow, "policies, to tell what of them is not enforced"),
		all("policystatus", ciliumGroup, "ciliumnetworkpolicies", slices.Concat(get, follow), "policies, to tell what of them is not enforced"),
		all("policystatus", ciliumGroup, "ciliumclusterwidenetworkpolicies", slices.Concat(get, follow), "policies, to tell what of them is not enforced"),
		all("policystatus", ciliumGroup, "ciliumcidrgroups", follow, "whether groups to which policies refer exist"),
		all("policystatus", ciliumGroup, "ciliumnetworkpolicies/status", patch, "the condition Valid"),
		all("policystatus", ciliumGroup, "ciliumclusterwidenetworkpolicies/status", patch, "the condition Valid"),
		all("policystatus", "", "events", create, "Events on policies that are not enforced as they ask"),
		all("servicestatus", "", "services", follow, "Services, for Events about annotations without effect"),
		all("servicestatus", "", "events", create, "Events on Services with such annotations"),
		all("identitygc", ciliumGroup, "ciliumendpoints", []string{"list"}, "who has which identity"),
		all("identitygc", ciliumGroup, "ciliumidentities", []string{"list", "delete"}, "removal of those that nobody has"),
		{Account: Cluster, Cell: "leaderelection", Group: "coordination.k8s.io", Resource: "leases", Verbs: create, Within: true, Why: "one replica leads"},
		{Account: Cluster, Cell: "leaderelection", Group: "coordination.k8s.io", Resource: "leases", Verbs: []string{"get", "update"}, Within: true,
			Names: []string{"waggle-cluster"}, Why: "one replica leads"},
	}
}

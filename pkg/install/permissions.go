package install

import (
	"slices"

	"github.com/waggle-net/waggle/pkg/kubernetes/crds"
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
		agent("k8stables", "", "nodes", follow, "pod CIDRs and addresses of all nodes"),
		agent("k8stables", "", "pods", follow, "pods of this node"),
		agent("k8stables", "", "namespaces", follow, "labels of namespaces are part of a pod's identity"),
		agent("k8stables", "", "services", follow, "services"),
		agent("k8stables", "discovery.k8s.io", "endpointslices", follow, "backends of services"),
		agent("k8stables", "networking.k8s.io", "networkpolicies", follow, "policies"),
		agent("k8stables", "networking.k8s.io", "ingresses", follow, "only agents of the previous build, during an update"),
		agent("k8stables", ciliumGroup, "ciliumnodes", follow, "addresses and pod CIDRs of all nodes"),
		agent("k8stables", ciliumGroup, "ciliumendpoints", follow, "pods of other nodes"),
		agent("k8stables", ciliumGroup, "ciliumendpointslices", follow, "pods of other nodes, with --enable-cilium-endpoint-slice"),
		agent("k8stables", ciliumGroup, "ciliumidentities", follow, "labels of identities"),
		agent("k8stables", ciliumGroup, "ciliumnetworkpolicies", follow, "policies"),
		agent("k8stables", ciliumGroup, "ciliumclusterwidenetworkpolicies", follow, "policies"),
		agent("k8stables", ciliumGroup, "ciliumcidrgroups", follow, "CIDRs in groups that policies reference"),
		agent("endpointmanager", "", "pods", get, "the pod of an ADD, if the watch has not delivered it yet"),
		agent("policyevents", "", "events", create, "Events on policies that exceed limits of this node"),
		agent("k8snode", "", "nodes", slices.Concat(get, patch), "the current Node of this node; removal of the taint"),
		agent("k8snode", "", "nodes/status", patch, "annotations and the conditions NetworkUnavailable and WaggleNetworkPathsDegraded of this node"),
		agent("ciliumnode", ciliumGroup, "ciliumnodes", slices.Concat(get, create, patch), "addresses and properties that this node publishes"),
		agent("ciliumendpoints", ciliumGroup, "ciliumendpoints", slices.Concat(get, create, patch, remove), "pods of this node, published for other nodes"),
		agent("identityallocator", ciliumGroup, "ciliumidentities", slices.Concat(get, create), "identities for new labels; the owner of a number that is in use"),
		{Account: Agent, Cell: "crdcheck", Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions", Verbs: get,
			Names: crds.NamesInCluster(), Why: "whether the custom resources match this version"},
	}
}

func clusterPermissions() []Permission {
	all := func(cell, group, resource string, verbs []string, why string) Permission {
		return Permission{Account: Cluster, Cell: cell, Group: group, Resource: resource, Verbs: verbs, Why: why}
	}
	return []Permission{
		all("clusterpool", ciliumGroup, "ciliumnodes", slices.Concat(get, follow, patch), "assignment of pod CIDRs to nodes without one"),
		all("endpointgc", ciliumGroup, "ciliumnodes", []string{"list", "delete"}, "removal of objects of deleted nodes"),
		all("endpointgc", ciliumGroup, "ciliumendpoints", []string{"list", "delete"}, "removal of objects of deleted pods and nodes"),
		all("endpointgc", "", "pods", []string{"get", "list"}, "whether the pod of a CiliumEndpoint exists; metadata only"),
		all("endpointgc", "", "nodes", []string{"get", "list"}, "whether the node of an object exists; metadata only"),
		all("ciliumendpointslices", ciliumGroup, "ciliumendpoints", follow, "pods to publish in slices"),
		all("ciliumendpointslices", ciliumGroup, "ciliumendpointslices", slices.Concat(get, follow, create, []string{"update", "delete"}), "slices with the pods of the cluster, read by agents"),
		all("policystatus", "networking.k8s.io", "networkpolicies", follow, "policies, to report unenforced parts"),
		all("policystatus", ciliumGroup, "ciliumnetworkpolicies", slices.Concat(get, follow), "policies, to report unenforced parts"),
		all("policystatus", ciliumGroup, "ciliumclusterwidenetworkpolicies", slices.Concat(get, follow), "policies, to report unenforced parts"),
		all("policystatus", ciliumGroup, "ciliumcidrgroups", follow, "whether the groups that policies reference exist"),
		all("policystatus", "", "services", follow, "whether the Services that policies reference exist, and their selectors"),
		all("policystatus", ciliumGroup, "ciliumnetworkpolicies/status", patch, "the condition Valid"),
		all("policystatus", ciliumGroup, "ciliumclusterwidenetworkpolicies/status", patch, "the condition Valid"),
		all("policystatus", "", "events", create, "Events on policies that are not fully enforced"),
		all("servicestatus", "", "services", follow, "Services, for Events about annotations without effect"),
		all("servicestatus", "", "events", create, "Events on Services with such annotations"),
		all("identitygc", ciliumGroup, "ciliumendpoints", []string{"list"}, "the identities that endpoints use"),
		all("identitygc", ciliumGroup, "ciliumidentities", []string{"list", "delete"}, "removal of unused identities"),
		{Account: Cluster, Cell: "leaderelection", Group: "coordination.k8s.io", Resource: "leases", Verbs: create, Within: true, Why: "election of the leading replica"},
		{Account: Cluster, Cell: "leaderelection", Group: "coordination.k8s.io", Resource: "leases", Verbs: []string{"get", "update"}, Within: true,
			Names: []string{"waggle-cluster"}, Why: "election of the leading replica"},
	}
}

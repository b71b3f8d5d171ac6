package reflectors

import (
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/waggle-net/waggle/pkg/k8sobjects"
	"github.com/waggle-net/waggle/pkg/kubeapi"
)

// kind is a resource and the table that its objects go to.
type kind struct {
	resource kubeapi.Resource
	table    string
	mine     func(k8sobjects.Row) bool // which rows of the table are of this resource
	narrow   func(*metav1.ListOptions) // what is asked for; nil means all
	holds    bool                      // rows of objects that a list lacks stay for a while, see [store.hold]
}

// remoteInterval is how long events of CiliumEndpoints gather. In a large cluster one of them changes every few milliseconds; woken for each, the agent
// takes several times what reading it and writing its addresses takes.
const remoteInterval = 100 * time.Millisecond

// gather is how long events of the kind gather before they are read; 0 for those that never wait.
func (k kind) gather() time.Duration {
	if k.resource.Plural == kubeapi.CiliumEndpoints.Plural {
		return remoteInterval
	}
	return 0
}

// kinds lists all that is followed.
func kinds(nodeName string) []kind {
	all := func(k8sobjects.Row) bool { return true }
	thisNode := func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", nodeName).String()
	}
	namespaced := func(r k8sobjects.Row) bool { return strings.Contains(r.Key(), "/") }
	return []kind{
		{kubeapi.Nodes, "k8s-nodes", all, nil, true},
		{kubeapi.Pods, "k8s-pods", all, thisNode, false},
		{kubeapi.Namespaces, "k8s-namespaces", all, nil, false},
		{kubeapi.Services, "k8s-services", all, nil, false},
		{kubeapi.EndpointSlices, "k8s-endpointslices", all, nil, false},
		{kubeapi.NetworkPolicies, "k8s-networkpolicies", all, nil, false},
		{kubeapi.Ingresses, "k8s-ingresses", all, nil, false},
		{kubeapi.CiliumNodes, "cilium-nodes", all, nil, true},
		{kubeapi.CiliumEndpoints, "cilium-endpoints", all, nil, false},
		{kubeapi.CiliumIdentities, "cilium-identities", all, nil, false},
		{kubeapi.CiliumNetworkPolicies, "cilium-networkpolicies", namespaced, nil, false},
		{kubeapi.CiliumClusterwidePolicies, "cilium-networkpolicies", func(r k8sobjects.Row) bool { return !namespaced(r) }, nil, false},
		{kubeapi.CiliumCIDRGroups, "cilium-cidrgroups", all, nil, false},
	}
}

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
		{kubeapi.Nodes, "k8s-nodes", all, nil},
		{kubeapi.Pods, "k8s-pods", all, thisNode},
		{kubeapi.Namespaces, "k8s-namespaces", all, nil},
		{kubeapi.Services, "k8s-services", all, nil},
		{kubeapi.EndpointSlices, "k8s-endpointslices", all, nil},
		{kubeapi.NetworkPolicies, "k8s-networkpolicies", all, nil},
		{kubeapi.Ingresses, "k8s-ingresses", all, nil},
		{kubeapi.CiliumNodes, "cilium-nodes", all, nil},
		{kubeapi.CiliumEndpoints, "cilium-endpoints", all, nil},
		{kubeapi.CiliumIdentities, "cilium-identities", all, nil},
		{kubeapi.CiliumNetworkPolicies, "cilium-networkpolicies", namespaced, nil},
		{kubeapi.CiliumClusterwidePolicies, "cilium-networkpolicies", func(r k8sobjects.Row) bool { return !namespaced(r) }, nil},
	}
}

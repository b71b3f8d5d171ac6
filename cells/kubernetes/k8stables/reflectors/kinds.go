package reflectors

import (
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/waggle-net/waggle/cells/kubernetes/k8stables/tables"
	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/kubernetes/jsonscan"
	"github.com/waggle-net/waggle/pkg/kubernetes/k8sobjects"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
)

// kind is a resource and the table of its objects.
type kind struct {
	resource kubeapi.Resource
	table    string
	mine     func(k8sobjects.Row) bool // selects the rows of this resource in the table
	narrow   func(*metav1.ListOptions) // options of the requests; nil requests all objects
	holds    bool                      // rows that a list lacks stay for a while, see [store.retain]
	staged   bool                      // the table is one of [tables.Stage]: it has no initializer, and [merger] reads it
}

// scope names the kind in health.
func (k kind) scope() string {
	if k.staged {
		return k.table
	}
	return k.resource.Plural
}

// emptyWithoutDefinition reports whether the table is complete and empty while the API server does not know the resource.
func (k kind) emptyWithoutDefinition(set *tables.Set) bool {
	return set.Optional(k.table) && k.resource.Plural != kubeapi.CiliumEndpoints.Plural
}

// remoteInterval is how long events of CiliumEndpoints gather. In a large cluster an event arrives every few milliseconds, and a wakeup for each
// costs the agent several times as much as decoding it and writing its addresses.
const remoteInterval = 100 * time.Millisecond

// reader reads the fields of an object that its row needs. It makes r unable if another decoder has to decode the object.
type reader func(r *jsonscan.Reader, nodeName string) runtime.Object

func readEndpoint(r *jsonscan.Reader, nodeName string) runtime.Object {
	return ciliumv2.ReadEndpoint(r, nodeName)
}

func readNode(r *jsonscan.Reader, _ string) runtime.Object { return ciliumv2.ReadNode(r) }

// read returns the reader of a kind whose watch is a [stream]; nil for other kinds.
func (k kind) read() reader {
	switch {
	case k.narrow != nil: // a stream does not apply it
		return nil
	case k.resource.Plural == kubeapi.CiliumEndpoints.Plural:
		return readEndpoint
	case k.resource.Plural == kubeapi.CiliumNodes.Plural:
		return readNode
	}
	return nil
}

// gather returns how long events of the kind gather before they are read; 0 reads them immediately.
func (k kind) gather() time.Duration {
	if k.resource.Plural == kubeapi.CiliumEndpoints.Plural && k.narrow == nil {
		return remoteInterval
	}
	return 0
}

// kindsOf returns all kinds that the source follows with these settings.
func kindsOf(s Settings) []kind {
	all := kinds(s.NodeName)
	if !s.Slices {
		return all
	}
	all = slices.DeleteFunc(all, func(k kind) bool { return k.table == remoteTable })
	every := func(k8sobjects.Row) bool { return true }
	return append(all,
		kind{kubeapi.CiliumEndpoints, "cilium-endpoints-own", every, labelled(ciliumv2.NodeLabel, s.NodeName), false, true},
		kind{kubeapi.CiliumEndpoints, "cilium-endpoints-listed", every, nil, false, true},
		kind{kubeapi.CiliumEndpointSlices, "cilium-endpointslices", every, labelled(ciliumv2.ManagedByLabel, ciliumv2.ManagedByUs), false, true})
}

// labelled selects objects with a label.
func labelled(name, value string) func(*metav1.ListOptions) {
	selector := labels.Set{name: value}.String()
	return func(o *metav1.ListOptions) { o.LabelSelector = selector }
}

// kinds returns all kinds that the source follows without slices.
func kinds(nodeName string) []kind {
	all := func(k8sobjects.Row) bool { return true }
	thisNode := func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", nodeName).String()
	}
	namespaced := func(r k8sobjects.Row) bool { return strings.Contains(r.Key(), "/") }
	return []kind{
		{kubeapi.Nodes, "k8s-nodes", all, nil, true, false},
		{kubeapi.Pods, "k8s-pods", all, thisNode, false, false},
		{kubeapi.Namespaces, "k8s-namespaces", all, nil, false, false},
		{kubeapi.Services, "k8s-services", all, nil, false, false},
		{kubeapi.EndpointSlices, "k8s-endpointslices", all, nil, false, false},
		{kubeapi.NetworkPolicies, "k8s-networkpolicies", all, nil, false, false},
		{kubeapi.CiliumNodes, "cilium-nodes", all, nil, true, false},
		{kubeapi.CiliumEndpoints, "cilium-endpoints", all, nil, false, false},
		{kubeapi.CiliumIdentities, "cilium-identities", all, nil, false, false},
		{kubeapi.CiliumNetworkPolicies, "cilium-networkpolicies", namespaced, nil, false, false},
		{kubeapi.CiliumClusterwidePolicies, "cilium-networkpolicies", func(r k8sobjects.Row) bool { return !namespaced(r) }, nil, false, false},
		{kubeapi.CiliumCIDRGroups, "cilium-cidrgroups", all, nil, false, false},
	}
}

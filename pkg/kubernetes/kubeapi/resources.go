package kubeapi

import (
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
)

// Resource is a resource type of the API server.
type Resource struct {
	GroupVersion schema.GroupVersion
	Plural       string // plural name, as in the path
	New          func() runtime.Object
	NewList      func() runtime.Object
	Proto        bool // the server supports protobuf for it; CRDs support only JSON
	metadata     bool // requested without spec and status
}

// MetadataOnly returns r without spec and status: its objects are metav1.PartialObjectMetadata.
func (r Resource) MetadataOnly() Resource {
	r.New = func() runtime.Object { return new(metav1.PartialObjectMetadata) }
	r.NewList = func() runtime.Object { return new(metav1.PartialObjectMetadataList) }
	r.metadata = true
	return r
}

// HasOnlyMetadata reports whether objects have neither spec nor status.
func (r Resource) HasOnlyMetadata() bool {
	return r.metadata || r.Plural == CustomResourceDefinitions.Plural
}

// String returns the name as in RBAC, e.g. "ciliumnodes.cilium.io".
func (r Resource) String() string {
	return schema.GroupResource{Group: r.GroupVersion.Group, Resource: r.Plural}.String()
}

func resource[T, L any, PT interface {
	*T
	runtime.Object
}, PL interface {
	*L
	runtime.Object
}](gv schema.GroupVersion, plural string, proto bool) Resource {
	return Resource{GroupVersion: gv, Plural: plural, New: func() runtime.Object { return PT(new(T)) },
		NewList: func() runtime.Object { return PL(new(L)) }, Proto: proto}
}

// Resources that the agent or the cluster role uses.
var (
	Nodes           = resource[corev1.Node, corev1.NodeList](corev1.SchemeGroupVersion, "nodes", true)
	Pods            = resource[corev1.Pod, corev1.PodList](corev1.SchemeGroupVersion, "pods", true)
	Namespaces      = resource[corev1.Namespace, corev1.NamespaceList](corev1.SchemeGroupVersion, "namespaces", true)
	Services        = resource[corev1.Service, corev1.ServiceList](corev1.SchemeGroupVersion, "services", true)
	EndpointSlices  = resource[discoveryv1.EndpointSlice, discoveryv1.EndpointSliceList](discoveryv1.SchemeGroupVersion, "endpointslices", true)
	NetworkPolicies = resource[networkingv1.NetworkPolicy, networkingv1.NetworkPolicyList](networkingv1.SchemeGroupVersion, "networkpolicies", true)
	Leases          = resource[coordinationv1.Lease, coordinationv1.LeaseList](coordinationv1.SchemeGroupVersion, "leases", true)
	Events          = resource[corev1.Event, corev1.EventList](corev1.SchemeGroupVersion, "events", true)

	CiliumNodes               = resource[ciliumv2.CiliumNode, ciliumv2.CiliumNodeList](ciliumv2.GroupVersion, "ciliumnodes", false)
	CiliumEndpoints           = resource[ciliumv2.CiliumEndpoint, ciliumv2.CiliumEndpointList](ciliumv2.GroupVersion, "ciliumendpoints", false)
	CiliumIdentities          = resource[ciliumv2.CiliumIdentity, ciliumv2.CiliumIdentityList](ciliumv2.GroupVersion, "ciliumidentities", false)
	CiliumNetworkPolicies     = resource[ciliumv2.CiliumNetworkPolicy, ciliumv2.CiliumNetworkPolicyList](ciliumv2.GroupVersion, "ciliumnetworkpolicies", false)
	CiliumClusterwidePolicies = resource[ciliumv2.CiliumClusterwideNetworkPolicy, ciliumv2.CiliumClusterwideNetworkPolicyList](ciliumv2.GroupVersion, "ciliumclusterwidenetworkpolicies", false)
	CiliumEndpointSlices      = resource[ciliumv2.CiliumEndpointSlice, ciliumv2.CiliumEndpointSliceList](ciliumv2.SliceGroupVersion, "ciliumendpointslices", false)
	CiliumCIDRGroups          = resource[ciliumv2.CiliumCIDRGroup, ciliumv2.CiliumCIDRGroupList](ciliumv2.GroupVersion, "ciliumcidrgroups", false)
)

// CustomResourceDefinitions are read as metadata only: a check of versions needs only names and labels.
var CustomResourceDefinitions = resource[metav1.PartialObjectMetadata, metav1.PartialObjectMetadataList](
	schema.GroupVersion{Group: "apiextensions.k8s.io", Version: "v1"}, "customresourcedefinitions", true)

// Resources returns all of the above.
func Resources() []Resource {
	return []Resource{Nodes, Pods, Namespaces, Services, EndpointSlices, NetworkPolicies, Leases, Events,
		CiliumNodes, CiliumEndpoints, CiliumEndpointSlices, CiliumIdentities, CiliumNetworkPolicies, CiliumClusterwidePolicies, CiliumCIDRGroups,
		CustomResourceDefinitions}
}

package ciliumv2

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// SliceGroupVersion is the group and version of CiliumEndpointSlices. Cilium serves them in no other version.
var SliceGroupVersion = schema.GroupVersion{Group: GroupVersion.Group, Version: "v2alpha1"}

// CompleteSlice is the name of a slice without endpoints. It exists while the other slices are complete; without it, agents read CiliumEndpoints. It sorts
// before the names of all other slices, so a client that deletes all slices in the order of their list deletes it first.
const CompleteSlice = "ces-0-complete"

// CiliumEndpointSlice lists pods of one namespace for agents of other nodes. It is an object of the cluster, not of the namespace.
type CiliumEndpointSlice struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	PodNamespace      string           `json:"namespace,omitempty"` // namespace of all its pods
	Endpoints         []SlicedEndpoint `json:"endpoints"`           // must not be nil
}

// SlicedEndpoint is the part of a CiliumEndpoint that other nodes need.
type SlicedEndpoint struct {
	Name           string              `json:"name,omitempty"`    // of the pod
	IdentityID     int64               `json:"id,omitempty"`      // number of the identity; 0 while there is none
	PodUID         string              `json:"pod-uid,omitempty"` // empty when no Pod owns the CiliumEndpoint
	Networking     *EndpointNetworking `json:"networking,omitempty"`
	Encryption     NodeEncryption      `json:"encryption"`
	NamedPorts     []NamedPort         `json:"named-ports,omitempty"`
	ServiceAccount string              `json:"service-account,omitempty"`
	Origin         *SliceOrigin        `json:"waggle,omitempty"`
}

// SliceOrigin holds the metadata of a CiliumEndpoint from which agents decide whether the object is trustworthy. Cilium's slices lack it.
type SliceOrigin struct {
	UID     string `json:"uid"`               // of the CiliumEndpoint
	Created int64  `json:"created,omitempty"` // creation time at the API server, in seconds since 1970
	Node    string `json:"node,omitempty"`    // its label [NodeLabel]
}

// CiliumEndpointSliceList is a list of objects of the kind CiliumEndpointSlice.
type CiliumEndpointSliceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []CiliumEndpointSlice `json:"items"`
}

// DeepCopyObject implements runtime.Object.
func (o *CiliumEndpointSlice) DeepCopyObject() runtime.Object { return clone(o) }

// DeepCopyObject implements runtime.Object.
func (o *CiliumEndpointSliceList) DeepCopyObject() runtime.Object { return clone(o) }

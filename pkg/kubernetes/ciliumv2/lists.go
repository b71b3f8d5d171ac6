package ciliumv2

import (
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// CiliumNodeList is a list of objects of the kind CiliumNode.
type CiliumNodeList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []CiliumNode `json:"items"`
}

// CiliumEndpointList is a list of objects of the kind CiliumEndpoint.
type CiliumEndpointList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []CiliumEndpoint `json:"items"`
}

// CiliumIdentityList is a list of objects of the kind CiliumIdentity.
type CiliumIdentityList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []CiliumIdentity `json:"items"`
}

// CiliumNetworkPolicyList is a list of objects of the kind CiliumNetworkPolicy.
type CiliumNetworkPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []CiliumNetworkPolicy `json:"items"`
}

// CiliumClusterwideNetworkPolicyList is a list of objects of the kind CiliumClusterwideNetworkPolicy.
type CiliumClusterwideNetworkPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []CiliumClusterwideNetworkPolicy `json:"items"`
}

// CiliumCIDRGroupList is a list of objects of the kind CiliumCIDRGroup.
type CiliumCIDRGroupList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []CiliumCIDRGroup `json:"items"`
}

// clone copies an object through JSON, so that no field can be missed. The copy is slow, but only tests and library code
// outside of hot paths copy these objects.
func clone[T any](in *T) *T {
	text, err := json.Marshal(in)
	if err != nil {
		panic(fmt.Errorf("copy %T: %w", in, err))
	}
	out := new(T)
	if err := json.Unmarshal(text, out); err != nil {
		panic(fmt.Errorf("copy %T: %w", in, err))
	}
	return out
}

// DeepCopyObject implements runtime.Object.
func (o *CiliumNode) DeepCopyObject() runtime.Object { return clone(o) }

// DeepCopyObject implements runtime.Object.
func (o *CiliumNodeList) DeepCopyObject() runtime.Object { return clone(o) }

// DeepCopyObject implements runtime.Object.
func (o *CiliumEndpoint) DeepCopyObject() runtime.Object { return clone(o) }

// DeepCopyObject implements runtime.Object.
func (o *CiliumEndpointList) DeepCopyObject() runtime.Object { return clone(o) }

// DeepCopyObject implements runtime.Object.
func (o *CiliumIdentity) DeepCopyObject() runtime.Object { return clone(o) }

// DeepCopyObject implements runtime.Object.
func (o *CiliumIdentityList) DeepCopyObject() runtime.Object { return clone(o) }

// DeepCopyObject implements runtime.Object.
func (o *CiliumNetworkPolicy) DeepCopyObject() runtime.Object { return clone(o) }

// DeepCopyObject implements runtime.Object.
func (o *CiliumNetworkPolicyList) DeepCopyObject() runtime.Object { return clone(o) }

// DeepCopyObject implements runtime.Object.
func (o *CiliumClusterwideNetworkPolicy) DeepCopyObject() runtime.Object { return clone(o) }

// DeepCopyObject implements runtime.Object.
func (o *CiliumClusterwideNetworkPolicyList) DeepCopyObject() runtime.Object { return clone(o) }

// DeepCopyObject implements runtime.Object.
func (o *CiliumCIDRGroup) DeepCopyObject() runtime.Object { return clone(o) }

// DeepCopyObject implements runtime.Object.
func (o *CiliumCIDRGroupList) DeepCopyObject() runtime.Object { return clone(o) }

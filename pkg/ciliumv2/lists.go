package ciliumv2

import (
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// CiliumNodeList is a list of them.
type CiliumNodeList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []CiliumNode `json:"items"`
}

// CiliumEndpointList is a list of them.
type CiliumEndpointList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []CiliumEndpoint `json:"items"`
}

// CiliumIdentityList is a list of them.
type CiliumIdentityList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []CiliumIdentity `json:"items"`
}

// CiliumNetworkPolicyList is a list of them.
type CiliumNetworkPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []CiliumNetworkPolicy `json:"items"`
}

// CiliumClusterwideNetworkPolicyList is a list of them.
type CiliumClusterwideNetworkPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []CiliumClusterwideNetworkPolicy `json:"items"`
}

// CiliumCIDRGroupList is a list of them.
type CiliumCIDRGroupList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []CiliumCIDRGroup `json:"items"`
}

// clone copies through JSON. The objects are copied in tests and by library code off every hot path; a copy that cannot
// forget a field is worth more than a fast one.
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

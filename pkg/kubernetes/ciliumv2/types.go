package ciliumv2

import (
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of all objects of this package except slices.
var GroupVersion = schema.GroupVersion{Group: "cilium.io", Version: "v2"}

// AddToScheme registers all objects and the option types of their groups.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion,
		&CiliumNode{}, &CiliumNodeList{}, &CiliumEndpoint{}, &CiliumEndpointList{}, &CiliumIdentity{}, &CiliumIdentityList{},
		&CiliumNetworkPolicy{}, &CiliumNetworkPolicyList{}, &CiliumClusterwideNetworkPolicy{},
		&CiliumClusterwideNetworkPolicyList{}, &CiliumCIDRGroup{}, &CiliumCIDRGroupList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	scheme.AddKnownTypes(SliceGroupVersion, &CiliumEndpointSlice{}, &CiliumEndpointSliceList{})
	metav1.AddToGroupVersion(scheme, SliceGroupVersion)
	return nil
}

// CiliumNode describes one node to all others. It has the name of the Node.
type CiliumNode struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              NodeSpec `json:"spec"`
}

// NodeSpec holds the addresses and settings of a node and its allocated pod CIDRs.
type NodeSpec struct {
	Addresses []NodeAddress  `json:"addresses,omitempty"`
	Health    AddressPair    `json:"health,omitzero"`
	Ingress   AddressPair    `json:"ingress,omitzero"`
	IPAM      NodeIPAM       `json:"ipam,omitzero"`
	Encrypt   NodeEncryption `json:"encryption,omitzero"`
	BootID    string         `json:"bootid,omitempty"`
}

// NodeAddress is one address of a node. Type is a type of a Node's addresses, or "CiliumInternalIP" for the router.
type NodeAddress struct {
	Type string `json:"type,omitempty"`
	IP   string `json:"ip,omitempty"`
}

// CiliumInternalIP is the type of the router's address in [NodeAddress].
const CiliumInternalIP = "CiliumInternalIP"

// NodeIPAM holds the node's pod CIDRs, at most one of each enabled family.
type NodeIPAM struct {
	PodCIDRs []string `json:"podCIDRs,omitempty"`
}

// NodeEncryption holds the key index of the node; 0 means none.
type NodeEncryption struct {
	Key int `json:"key,omitempty"`
}

// AddressPair holds an address of each family; empty when the family is disabled.
type AddressPair struct {
	IPv4 string `json:"ipv4,omitempty"`
	IPv6 string `json:"ipv6,omitempty"`
}

// CiliumEndpoint describes one pod to all other nodes. It has the name of the Pod.
type CiliumEndpoint struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Status            EndpointStatus `json:"status,omitzero"`
}

// EndpointStatus is the only part of a CiliumEndpoint besides its metadata.
type EndpointStatus struct {
	ID             int64                `json:"id,omitempty"` // id of the endpoint on its node
	ExternalIDs    *EndpointIdentifiers `json:"external-identifiers,omitempty"`
	Identity       *EndpointIdentity    `json:"identity,omitempty"`
	Networking     *EndpointNetworking  `json:"networking,omitempty"`
	Encryption     NodeEncryption       `json:"encryption"`
	State          string               `json:"state,omitempty"`
	NamedPorts     []NamedPort          `json:"named-ports,omitempty"`
	ServiceAccount string               `json:"service-account,omitempty"`
}

// EndpointIdentifiers holds the names of an endpoint outside the agent.
type EndpointIdentifiers struct {
	CNIAttachmentID string `json:"cni-attachment-id,omitempty"`
	ContainerID     string `json:"container-id,omitempty"`
	PodNamespace    string `json:"k8s-namespace,omitempty"`
	PodName         string `json:"k8s-pod-name,omitempty"`
	Pod             string `json:"pod-name,omitempty"` // "namespace/name"
}

// EndpointIdentity is the security identity of an endpoint.
type EndpointIdentity struct {
	ID     int64    `json:"id,omitempty"`
	Labels []string `json:"labels,omitempty"` // "source:key=value", sorted
}

// EndpointNetworking holds the addresses of a pod and of its node.
type EndpointNetworking struct {
	Addressing []AddressPair `json:"addressing"`
	Node       string        `json:"node,omitempty"` // address of the node
}

// NamedPort is a named container port.
type NamedPort struct {
	Name     string `json:"name,omitempty"`
	Port     uint16 `json:"port,omitempty"`
	Protocol string `json:"protocol,omitempty"`
}

// CiliumIdentity assigns a number to a set of labels. The number is the name of the object.
type CiliumIdentity struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	SecurityLabels    map[string]string `json:"security-labels"` // "source:key" -> value
}

// CiliumNetworkPolicy is a policy of one namespace. Its rules are not decoded.
type CiliumNetworkPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              json.RawMessage `json:"spec,omitempty"`  // one rule
	Specs             json.RawMessage `json:"specs,omitempty"` // a list of rules
	Status            PolicyStatus    `json:"status,omitzero"`
}

// CiliumClusterwideNetworkPolicy is a policy of the whole cluster.
type CiliumClusterwideNetworkPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              json.RawMessage `json:"spec,omitempty"`
	Specs             json.RawMessage `json:"specs,omitempty"`
	Status            PolicyStatus    `json:"status,omitzero"`
}

// CiliumCIDRGroup is a list of CIDRs. Policies of all namespaces refer to it by its name or its labels.
type CiliumCIDRGroup struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              CIDRGroupSpec `json:"spec"`
}

// CIDRGroupSpec is the content of a group.
type CIDRGroupSpec struct {
	ExternalCIDRs []string `json:"externalCIDRs"` // CIDRs or addresses outside the cluster
}

// PolicyStatus shows the user whether a policy is valid. Other clients may write further fields, which the type omits.
type PolicyStatus struct {
	Conditions []PolicyCondition `json:"conditions,omitempty"`
}

// PolicyCondition is one condition of a policy. There is at most one of each type.
type PolicyCondition struct {
	Type               string `json:"type"`
	Status             string `json:"status"`                       // "True", "False" or "Unknown"
	LastTransitionTime string `json:"lastTransitionTime,omitempty"` // RFC 3339
	Reason             string `json:"reason,omitempty"`
	Message            string `json:"message,omitempty"`
}

// PolicyValid is the type of the condition that shows whether all of a policy can be enforced.
const PolicyValid = "Valid"

package k8s

import (
	"net/netip"
	"reflect"
	"strconv"
	"strings"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/indexes"
	"github.com/waggle-net/waggle/pkg/printable"
)

// Selector selects objects by labels. The zero value selects all.
type Selector struct {
	MatchLabels map[string]string `json:"matchLabels,omitempty"`
	Expressions []Expression      `json:"expressions,omitempty"`
}

// Expression is one requirement of a selector.
type Expression struct {
	Key      string   `json:"key"`
	Operator string   `json:"operator"` // "In", "NotIn", "Exists" or "DoesNotExist"
	Values   []string `json:"values,omitempty"`
}

// Peer is the peer of a rule: an address block or a selection of pods.
type Peer struct {
	Pods       *Selector      `json:"pods,omitempty"`       // nil: all pods
	Namespaces *Selector      `json:"namespaces,omitempty"` // nil: the policy's own namespace
	IPBlock    netip.Prefix   `json:"ipBlock"`              // invalid if the peer is a selection of pods
	Except     []netip.Prefix `json:"except,omitempty"`     // excluded parts of IPBlock
}

// PolicyPort is a port of a rule.
type PolicyPort struct {
	Protocol string `json:"protocol"` // never empty
	Port     string `json:"port"`     // number or name of a container port; empty: all
	EndPort  uint16 `json:"endPort,omitempty"`
}

// PolicyRule allows peers on ports. Without peers it allows all peers, without ports all ports, unless the rule is invalid.
type PolicyRule struct {
	Peers []Peer       `json:"peers,omitempty"`
	Ports []PolicyPort `json:"ports,omitempty"`
	// Invalid describes an error in the rule, which then has neither peers nor ports and allows no packet. Empty for a valid rule.
	Invalid string `json:"invalid,omitempty"`
}

// NetworkPolicy is a Kubernetes NetworkPolicy. It is never changed in place.
type NetworkPolicy struct {
	Namespace   string            `json:"namespace"`
	Name        string            `json:"name"`
	UID         string            `json:"uid,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
	PodSelector Selector          `json:"podSelector"`
	// IsIngress and IsEgress are the isolated directions, with the defaults of Kubernetes.
	IsIngress bool         `json:"isIngress,omitempty"`
	IsEgress  bool         `json:"isEgress,omitempty"`
	Ingress   []PolicyRule `json:"ingress,omitempty"`
	Egress    []PolicyRule `json:"egress,omitempty"`
	// Invalid describes an error in the selector, the directions or the whole policy. PodSelector and the directions then select more rather than less,
	// and no rule allows any packet. Empty for a valid policy.
	Invalid string `json:"invalid,omitempty"`
}

// Key is "namespace/name".
func (p *NetworkPolicy) Key() string { return p.Namespace + "/" + p.Name }

// Equal compares everything. It uses reflection, because rules nest deeply and policies change rarely.
func (p *NetworkPolicy) Equal(o *NetworkPolicy) bool { return reflect.DeepEqual(p, o) }

// TableHeader implements statedb.TableWritable.
func (*NetworkPolicy) TableHeader() []string {
	return []string{"Policy", "UID", "Directions", "IngressRules", "EgressRules"}
}

// TableRow implements statedb.TableWritable.
func (p *NetworkPolicy) TableRow() []string {
	var directions []string
	if p.IsIngress {
		directions = append(directions, "ingress")
	}
	if p.IsEgress {
		directions = append(directions, "egress")
	}
	return []string{p.Key(), printable.Text(p.UID), strings.Join(directions, ","), strconv.Itoa(len(p.Ingress)),
		strconv.Itoa(len(p.Egress))}
}

var networkPolicyIndex = indexes.Unique("name", indexes.String, (*NetworkPolicy).Key)

// NetworkPolicyByName finds a policy by "namespace/name".
var NetworkPolicyByName = networkPolicyIndex.Query

// NewNetworkPolicyTable makes the table "k8s-networkpolicies".
func NewNetworkPolicyTable(db *statedb.DB) (statedb.RWTable[*NetworkPolicy], error) {
	return statedb.NewTable(db, "k8s-networkpolicies", networkPolicyIndex)
}

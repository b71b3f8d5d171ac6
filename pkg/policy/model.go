package policy

import (
	"fmt"
	"net/netip"
	"strconv"
)

// Direction is the direction in which a connection is opened, seen from the subject of a policy. The datapath uses the same numbers.
type Direction uint8

const (
	Ingress Direction = 1
	Egress  Direction = 2
)

// Directions lists both directions.
var Directions = [2]Direction{Ingress, Egress}

// String returns "ingress" or "egress".
func (d Direction) String() string {
	switch d {
	case Ingress:
		return "ingress"
	case Egress:
		return "egress"
	}
	return "direction " + strconv.Itoa(int(d))
}

// Kind is the kind of a policy object.
type Kind string

const (
	Kubernetes  Kind = "NetworkPolicy"
	Cilium      Kind = "CiliumNetworkPolicy"
	Clusterwide Kind = "CiliumClusterwideNetworkPolicy"
)

// Ref identifies a policy object.
type Ref struct {
	Kind      Kind   `json:"kind"`
	Namespace string `json:"namespace,omitempty"` // empty for a clusterwide object
	Name      string `json:"name"`
}

// String returns "Kind namespace/name", or "Kind name" for a clusterwide object.
func (r Ref) String() string {
	if r.Namespace == "" {
		return string(r.Kind) + " " + r.Name
	}
	return string(r.Kind) + " " + r.Namespace + "/" + r.Name
}

// IsCalled reports whether a name refers to the object. Accepted names are "name", "namespace/name" and "Kind namespace/name".
func (r Ref) IsCalled(name string) bool {
	full := r.String()
	return name == full || string(r.Kind)+" "+name == full || name == r.Name
}

// Policy is one parsed policy object. It is immutable.
type Policy struct {
	Ref   Ref    `json:"ref"`
	UID   string `json:"uid,omitempty"`
	Audit bool   `json:"audit,omitempty"` // audit mode: the policy affects only [Result.Audited]
	Parts []Part `json:"parts,omitempty"`
	// Groups are the CiliumCIDRGroups to which the policy refers; the rules contain their CIDRs.
	Groups []GroupChoice `json:"groups,omitempty"`
	// Services are the Services to which the policy refers by name or by labels, sorted, each once; the rules contain the labels of their pods or their addresses.
	Services   []ServiceName `json:"services,omitempty"`
	references []int         // number of references to each of Services
	// ServiceNamespaces are the namespaces in which the policy chooses Services by their labels, sorted, each once.
	ServiceNamespaces []string `json:"serviceNamespaces,omitempty"`
	choices           []int    // number of selectors of Services in each of ServiceNamespaces
	// Problems are the parts of the object that are not enforced as written, each with its effect.
	Problems []Problem `json:"problems,omitempty"`
}

// Part is the policy for one selection of subjects: a whole Kubernetes policy, or one spec of a Cilium policy.
type Part struct {
	Path    string   `json:"path,omitempty"` // location in the object: "spec", "specs[1]"
	Subject Selector `json:"subject"`        // selects endpoints by all their labels
	// IsolatesIngress and IsolatesEgress enable default deny in a direction: a connection that no rule of any policy allows is denied.
	IsolatesIngress bool   `json:"isolatesIngress,omitempty"`
	IsolatesEgress  bool   `json:"isolatesEgress,omitempty"`
	Rules           []Rule `json:"rules,omitempty"`
	// Requirements are additional conditions on peers, for the rules of all policies of the same subject.
	Requirements []PeerRequirement `json:"requirements,omitempty"`
}

// PeerRequirement narrows the peers that rules select by labels: fromRequires and toRequires of Cilium. It selects no peer itself. It does not narrow peers
// that rules select by an address, a number or an entity.
type PeerRequirement struct {
	Path      string    `json:"path"` // location in the object: "spec.ingress[0].fromRequires[0]"
	Direction Direction `json:"direction"`
	Deny      bool      `json:"deny,omitempty"` // narrows deny rules; otherwise allow rules
	Labels    Selector  `json:"labels"`
}

// Isolates reports whether the part enables default deny for its subjects in a direction.
func (p *Part) Isolates(d Direction) bool {
	if d == Ingress {
		return p.IsolatesIngress
	}
	return p.IsolatesEgress
}

// Rule allows or denies connections of some peers on some ports.
type Rule struct {
	Path      string    `json:"path"` // location in the object: "spec.ingress[0]", "specs[1].egressDeny[2]"
	Direction Direction `json:"direction"`
	Deny      bool      `json:"deny,omitempty"`
	Peers     Peers     `json:"peers"`
	Ports     Ports     `json:"ports"`
}

// Peers is the set of peers that a rule matches: every peer if Any is set, otherwise the union of List. An empty List matches no peer; only Any matches
// every peer.
type Peers struct {
	Any  bool   `json:"any,omitempty"`
	List []Peer `json:"list,omitempty"`
}

// Scope limits the addresses that a CIDR of a rule can match.
type Scope uint8

const (
	// Everyone matches every peer with an address in the CIDR, including pods and nodes, as Kubernetes requires for an ipBlock.
	Everyone Scope = 0
	// Outside matches only peers that are neither an endpoint nor a node, as CIDR rules of Cilium do; with
	// [Options.CIDRMatchesNodes] nodes too.
	Outside Scope = 1
)

// Peer selects peers. Exactly one of Labels, CIDR and Identities is set.
type Peer struct {
	// Labels selects identities by their labels.
	Labels *Selector `json:"labels,omitempty"`
	Entity bool      `json:"entity,omitempty"` // Labels describe an entity of the rule
	// CIDR selects addresses, except the addresses in Except. It is invalid for other kinds of peers.
	CIDR   netip.Prefix   `json:"cidr,omitzero"`
	Except []netip.Prefix `json:"except,omitempty"`
	Scope  Scope          `json:"scope,omitempty"`
	// Identities are fixed identities, to which entities refer. The entity "world" refers to 2, 9 and 10; see [identity.World].
	Identities []uint32 `json:"identities,omitempty"`
}

// Ports is the set of ports that a rule matches: all ports of all protocols if Any is set, otherwise the union of List. An empty List matches no port.
type Ports struct {
	Any  bool   `json:"any,omitempty"`
	List []Port `json:"list,omitempty"`
}

// IP protocol numbers that policies can name.
const (
	ProtocolICMP   uint8 = 1
	ProtocolTCP    uint8 = 6
	ProtocolUDP    uint8 = 17
	ProtocolICMPv6 uint8 = 58
	ProtocolSCTP   uint8 = 132
)

// Port is a range of destination ports of one protocol; for ICMP, of message types. Exactly one of All, Name and the range is set.
type Port struct {
	Protocol uint8  `json:"protocol"`       // IP protocol number, never 0; a port of several protocols is several Ports
	All      bool   `json:"all,omitempty"`  // every port of the protocol
	Name     string `json:"name,omitempty"` // container port of the responder, by name and protocol
	Low      uint16 `json:"low,omitempty"`  // the range, inclusive; for ICMP the type
	High     uint16 `json:"high,omitempty"`
}

// Problem describes a part of a policy that is not enforced as written.
type Problem struct {
	Path   string `json:"path"`   // location in the object
	Reason string `json:"reason"` // one of the constants below
	// Message is one sentence that contains the problem, its effect on the rule, and the remedy.
	Message string `json:"message"`
	// Invalid is set if the policy is wrong, and unset if a correct policy cannot be enforced.
	Invalid bool `json:"invalid,omitempty"`
}

// Reasons of a [Problem]. An allow rule that is not enforced allows nothing; a deny rule that cannot be enforced as written denies every connection that it
// may mean.
const (
	ReasonUnsupported = "Unsupported" // unsupported kind of rule: L7, DNS names, nodes, groups of a cloud provider
	ReasonInvalid     = "Invalid"     // contradictory, or cannot be parsed
	ReasonLabel       = "LabelNotInIdentity"
	ReasonAbsent      = "NotFound" // refers to an object that does not exist
	ReasonOverflow    = "Overflow" // a node has no free map slots for the policy, its namespace has used up its quota, or the policies of an endpoint exceed a limit
)

// Options configure the evaluation of policies for the whole agent.
type Options struct {
	Mode Mode
	// AllowLocalhost allows connections from the local host to its endpoints regardless of policies. Probes of kubelet need it.
	AllowLocalhost bool
	// CIDRMatchesNodes is --policy-cidr-match-mode=nodes.
	CIDRMatchesNodes bool
	// L7Rules is --l7-rules.
	L7Rules L7Mode
}

// L7Mode is --l7-rules: the effect of a rule that allows only some requests on a port (HTTP, DNS, Kafka). Requests are not inspected.
type L7Mode string

const (
	DenyL7       L7Mode = "deny"       // the rule allows nothing
	AllowL7Ports L7Mode = "allow-port" // the rule allows all connections on the port
)

// L7RulesUsage is the help text of --l7-rules, a flag of the node and the cluster role.
const L7RulesUsage = "Effect of Cilium's layer 7 rules (HTTP, DNS, Kafka), which are not enforced: " +
	"deny (they allow nothing) or allow-port (they allow their whole ports)"

// ParseL7Mode parses the value of --l7-rules.
func ParseL7Mode(text string) (L7Mode, error) {
	switch mode := L7Mode(text); mode {
	case DenyL7, AllowL7Ports:
		return mode, nil
	}
	return "", fmt.Errorf("--l7-rules=%q: use %s or %s", text, DenyL7, AllowL7Ports)
}

// Mode is --enable-policy.
type Mode string

const (
	Default Mode = "default" // an endpoint is isolated in a direction in which a policy isolates it
	Always  Mode = "always"  // every endpoint is isolated in both directions
	Never   Mode = "never"   // nothing is enforced
)

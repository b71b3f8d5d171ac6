package policy

import (
	"fmt"
	"net/netip"
	"strconv"
)

// Direction is the one in which a connection is opened, as the subject of a policy sees it. The numbers are those of the
// datapath.
type Direction uint8

const (
	Ingress Direction = 1
	Egress  Direction = 2
)

// Directions lists both.
var Directions = [2]Direction{Ingress, Egress}

// String is "ingress" or "egress".
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

// Ref names a policy object.
type Ref struct {
	Kind      Kind   `json:"kind"`
	Namespace string `json:"namespace,omitempty"` // empty for an object of the whole cluster
	Name      string `json:"name"`
}

// String is "Kind namespace/name", or "Kind name".
func (r Ref) String() string {
	if r.Namespace == "" {
		return string(r.Kind) + " " + r.Name
	}
	return string(r.Kind) + " " + r.Namespace + "/" + r.Name
}

// IsCalled tells whether a name means the object: "name", "namespace/name" or "Kind namespace/name".
func (r Ref) IsCalled(name string) bool {
	full := r.String()
	return name == full || string(r.Kind)+" "+name == full || name == r.Name
}

// Policy is one object, parsed. It is never changed in place.
type Policy struct {
	Ref   Ref    `json:"ref"`
	UID   string `json:"uid,omitempty"`
	Audit bool   `json:"audit,omitempty"` // it counts and reports, and denies nothing
	Parts []Part `json:"parts,omitempty"`
	// Groups are the CiliumCIDRGroups to which it refers; their CIDRs are in the rules.
	Groups []GroupChoice `json:"groups,omitempty"`
	// Problems are what it asks and we do not enforce, with what that means.
	Problems []Problem `json:"problems,omitempty"`
}

// Part is what an object says of one choice of subjects: the whole of a Kubernetes policy, one spec of Cilium's.
type Part struct {
	Path    string   `json:"path,omitempty"` // where it stands in the object: "spec", "specs[1]"
	Subject Selector `json:"subject"`        // of endpoints, by all their labels
	// IsolatesIngress and IsolatesEgress: what no rule of any policy allows in that direction is denied.
	IsolatesIngress bool   `json:"isolatesIngress,omitempty"`
	IsolatesEgress  bool   `json:"isolatesEgress,omitempty"`
	Rules           []Rule `json:"rules,omitempty"`
	// Requirements are what peers must have besides, in rules of any policy of the same subject.
	Requirements []PeerRequirement `json:"requirements,omitempty"`
}

// PeerRequirement narrows the peers that rules choose by their labels: fromRequires and toRequires of Cilium. It selects no peer itself. Peers that
// rules choose by an address, a number or an entity are not narrowed.
type PeerRequirement struct {
	Path      string    `json:"path"` // where it stands in the object: "spec.ingress[0].fromRequires[0]"
	Direction Direction `json:"direction"`
	Deny      bool      `json:"deny,omitempty"` // it narrows rules that deny, otherwise those that allow
	Labels    Selector  `json:"labels"`
}

// Isolates tells whether the part sets its subjects to default deny in a direction.
func (p *Part) Isolates(d Direction) bool {
	if d == Ingress {
		return p.IsolatesIngress
	}
	return p.IsolatesEgress
}

// Rule allows or denies connections of some peers on some ports.
type Rule struct {
	Path      string    `json:"path"` // where it stands in the object: "spec.ingress[0]", "specs[1].egressDeny[2]"
	Direction Direction `json:"direction"`
	Deny      bool      `json:"deny,omitempty"`
	Peers     Peers     `json:"peers"`
	Ports     Ports     `json:"ports"`
}

// Peers says whom a rule speaks of: everybody, or the union of List. An empty List is nobody; it never means everybody,
// which Any alone says.
type Peers struct {
	Any  bool   `json:"any,omitempty"`
	List []Peer `json:"list,omitempty"`
}

// Scope says which addresses a CIDR of a rule may match at all.
type Scope uint8

const (
	// Everyone matches whoever has an address in the CIDR, pods and nodes included, as Kubernetes demands of an ipBlock.
	Everyone Scope = 0
	// Outside matches only peers that are neither an endpoint nor a node, as CIDR rules of Cilium do; with
	// [Options.CIDRMatchesNodes] nodes too.
	Outside Scope = 1
)

// Peer is one choice of peers. Exactly one of Labels, CIDR and Identities is set.
type Peer struct {
	// Labels chooses identities by their labels.
	Labels *Selector `json:"labels,omitempty"`
	Entity bool      `json:"entity,omitempty"` // Labels are what an entity stands for
	// CIDR chooses addresses, less those in Except; invalid when it is not this kind of peer.
	CIDR   netip.Prefix   `json:"cidr,omitzero"`
	Except []netip.Prefix `json:"except,omitempty"`
	Scope  Scope          `json:"scope,omitempty"`
	// Identities are fixed numbers, which is what entities stand for. See [identity.World] for "world": it means 2, 9 and 10.
	Identities []uint32 `json:"identities,omitempty"`
}

// Ports says which ports a rule speaks of: all of all protocols, or the union of List. An empty List is none.
type Ports struct {
	Any  bool   `json:"any,omitempty"`
	List []Port `json:"list,omitempty"`
}

// IP protocols that policies know.
const (
	ProtocolICMP   uint8 = 1
	ProtocolTCP    uint8 = 6
	ProtocolUDP    uint8 = 17
	ProtocolICMPv6 uint8 = 58
	ProtocolSCTP   uint8 = 132
)

// Port is a range of destination ports of one protocol; for ICMP, of message types. Exactly one of All, Name and the range
// holds.
type Port struct {
	Protocol uint8  `json:"protocol"`       // an IP protocol, never 0: what means several is several ports
	All      bool   `json:"all,omitempty"`  // every port of the protocol
	Name     string `json:"name,omitempty"` // a container port of whoever is connected to, by name and protocol
	Low      uint16 `json:"low,omitempty"`  // the range, both ends included; for ICMP the type
	High     uint16 `json:"high,omitempty"`
}

// Problem is something that a policy asks and that is not enforced as it asks.
type Problem struct {
	Path   string `json:"path"`   // where it stands in the object
	Reason string `json:"reason"` // one word, of the constants below
	// Message says what it is, what becomes of the rule, and what to do, in a sentence.
	Message string `json:"message"`
	// Invalid tells a mistake from what is only not supported.
	Invalid bool `json:"invalid,omitempty"`
}

// Reasons of a [Problem]. An allow that is not enforced grants nothing; a deny that cannot be narrowed denies the whole
// peers and ports that it names.
const (
	ReasonUnsupported = "Unsupported" // a kind of rule that we do not have: L7, names, services, nodes, groups of a cloud
	ReasonInvalid     = "Invalid"     // it contradicts itself or cannot be parsed
	ReasonLabel       = "LabelNotInIdentity"
	ReasonAbsent      = "NotFound" // it refers to an object that does not exist
	ReasonOverflow    = "Overflow" // a node has no slots in its maps for it, or its namespace has used up its quota
)

// Options change what policies mean, for the whole agent.
type Options struct {
	Mode Mode
	// AllowLocalhost lets the local host reach its endpoints whatever policies say, as probes of kubelet need it.
	AllowLocalhost bool
	// CIDRMatchesNodes is --policy-cidr-match-mode=nodes.
	CIDRMatchesNodes bool
	// L7Rules is --l7-rules.
	L7Rules L7Mode
}

// L7Mode is --l7-rules: what becomes of a rule that allows only some requests on a port (HTTP, DNS, Kafka), which are not inspected.
type L7Mode string

const (
	DenyL7       L7Mode = "deny"       // the rule allows nothing
	AllowL7Ports L7Mode = "allow-port" // the rule allows all connections on the port
)

// L7RulesUsage explains --l7-rules, which the roles of a node and of the cluster have.
const L7RulesUsage = "What rules of Cilium's policies do that allow only some requests on a port (HTTP, DNS, Kafka), which are not inspected: " +
	"deny (they allow nothing) or allow-port (they allow all connections on the port)"

// ParseL7Mode checks what was typed.
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

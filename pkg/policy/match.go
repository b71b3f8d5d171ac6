package policy

import (
	"net/netip"
	"slices"

	"github.com/waggle-net/waggle/pkg/identity"
)

// NamedPort is a container port with a name. For each protocol, a name has one number in a pod.
type NamedPort struct {
	Name     string `json:"name"`
	Protocol uint8  `json:"protocol"` // an IP protocol
	Number   uint16 `json:"number"`
}

// Party is one end of a connection.
type Party struct {
	Identity uint32 `json:"identity"`
	// Labels maps "source:key" to the value: all labels of the endpoint for a subject, the labels of the identity for a peer.
	Labels map[string]string `json:"labels,omitempty"`
	Addr   netip.Addr        `json:"addr,omitzero"`   // not needed for a subject
	Ports  []NamedPort       `json:"ports,omitempty"` // needed for the responder
}

// Matches reports whether the set includes the party.
func (p *Peers) Matches(who *Party, options Options) bool {
	return p.Any || slices.ContainsFunc(p.List, func(one Peer) bool { return one.Matches(who, options) })
}

// Matches reports whether the peer selects the party.
func (p *Peer) Matches(who *Party, options Options) bool {
	if p.CIDR.IsValid() {
		return p.Scope.Includes(who.Identity, options) && p.MatchesAddr(who.Addr)
	}
	return p.MatchesIdentity(who.Identity, who.Labels)
}

// MatchesIdentity reports whether a peer with labels or numbers selects an identity. It is false for a CIDR.
func (p *Peer) MatchesIdentity(id uint32, labels map[string]string) bool {
	if p.Labels != nil {
		return p.Labels.Matches(labels)
	}
	return slices.Contains(p.Identities, id)
}

// MatchesAddr reports whether the CIDR contains an address outside its exceptions. It ignores the scope.
func (p *Peer) MatchesAddr(addr netip.Addr) bool {
	addr = addr.Unmap()
	return p.CIDR.IsValid() && p.CIDR.Contains(addr) &&
		!slices.ContainsFunc(p.Except, func(except netip.Prefix) bool { return except.Contains(addr) })
}

// Includes reports whether a CIDR of this scope can match a peer with the identity.
func (s Scope) Includes(id uint32, options Options) bool {
	switch {
	case s == Everyone:
		return true
	case id == identity.World || id == identity.WorldIPv4 || id == identity.WorldIPv6:
		return true
	}
	return options.CIDRMatchesNodes && isNode(id)
}

// isNode reports whether an identity belongs to a node. [identity.KubeAPIServer] is such an identity.
func isNode(id uint32) bool {
	const scopeOfNodes = 0x02000000 // Cilium's scope of nodes that have a number each
	return id == identity.Host || id == identity.RemoteNode || id == identity.KubeAPIServer || id&0xff000000 == scopeOfNodes
}

// Matches reports whether the set includes a port; named are the container ports of the responder.
func (p *Ports) Matches(protocol uint8, port uint16, named []NamedPort) bool {
	return p.Any || slices.ContainsFunc(p.List, func(one Port) bool { return one.Matches(protocol, port, named) })
}

// Matches reports whether the range includes a port; named are the container ports of the responder.
func (p *Port) Matches(protocol uint8, port uint16, named []NamedPort) bool {
	switch {
	case p.Protocol != protocol:
		return false
	case p.All:
		return true
	case p.Name != "":
		return slices.Contains(named, NamedPort{Name: p.Name, Protocol: protocol, Number: port})
	}
	return p.Low <= port && port <= p.High
}

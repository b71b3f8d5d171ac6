package policy

import (
	"net/netip"
	"slices"

	"github.com/waggle-net/waggle/pkg/identity"
)

// NamedPort is a container port that has a name. A pod serves a name of one protocol on one number.
type NamedPort struct {
	Name     string `json:"name"`
	Protocol uint8  `json:"protocol"` // an IP protocol
	Number   uint16 `json:"number"`
}

// Party is one end of a connection.
type Party struct {
	Identity uint32 `json:"identity"`
	// Labels are "source:key" -> value: of a subject all labels of the endpoint, of a peer those of its identity.
	Labels map[string]string `json:"labels,omitempty"`
	Addr   netip.Addr        `json:"addr,omitzero"`   // not needed of a subject
	Ports  []NamedPort       `json:"ports,omitempty"` // needed of whoever is connected to
}

// Matches tells whether a rule speaks of the party.
func (p *Peers) Matches(who *Party, options Options) bool {
	return p.Any || slices.ContainsFunc(p.List, func(one Peer) bool { return one.Matches(who, options) })
}

// Matches tells whether the choice includes the party.
func (p *Peer) Matches(who *Party, options Options) bool {
	if p.CIDR.IsValid() {
		return p.Scope.Includes(who.Identity, options) && p.MatchesAddr(who.Addr)
	}
	return p.MatchesIdentity(who.Identity, who.Labels)
}

// MatchesIdentity tells whether a choice by labels or numbers includes an identity; a CIDR never does.
func (p *Peer) MatchesIdentity(id uint32, labels map[string]string) bool {
	if p.Labels != nil {
		return p.Labels.Matches(labels)
	}
	return slices.Contains(p.Identities, id)
}

// MatchesAddr tells whether a CIDR holds an address that is not excepted, whoever has it.
func (p *Peer) MatchesAddr(addr netip.Addr) bool {
	addr = addr.Unmap()
	return p.CIDR.IsValid() && p.CIDR.Contains(addr) &&
		!slices.ContainsFunc(p.Except, func(except netip.Prefix) bool { return except.Contains(addr) })
}

// Includes tells whether a CIDR of this scope can match a peer of an identity at all.
func (s Scope) Includes(id uint32, options Options) bool {
	switch {
	case s == Everyone:
		return true
	case id == identity.World || id == identity.WorldIPv4 || id == identity.WorldIPv6:
		return true
	}
	return options.CIDRMatchesNodes && isNode(id)
}

// isNode tells whether an identity stands for a node. So does that of the API server: see [identity.KubeAPIServer].
func isNode(id uint32) bool {
	const scopeOfNodes = 0x02000000 // Cilium's, of nodes that have a number each
	return id == identity.Host || id == identity.RemoteNode || id == identity.KubeAPIServer || id&0xff000000 == scopeOfNodes
}

// Matches tells whether a rule speaks of a port; named are the container ports of whoever is connected to.
func (p *Ports) Matches(protocol uint8, port uint16, named []NamedPort) bool {
	return p.Any || slices.ContainsFunc(p.List, func(one Port) bool { return one.Matches(protocol, port, named) })
}

// Matches tells whether a port is in the range; named are the container ports of whoever is connected to.
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

package policycompiler

import (
	"slices"

	"github.com/waggle-net/waggle/pkg/identity"
)

// Peer describes the remote end of a connection as the datapath identifies it.
type Peer struct {
	Identity uint32   `json:"identity"`          // of its endpoint, node or world; 0 when unknown: no rule allows such a peer
	Classes  Classes  `json:"classes,omitzero"`  // of its identity
	CIDRs    []uint32 `json:"cidrs,omitempty"`   // of the named CIDRs that contain its address, the longest first
	Outside  bool     `json:"outside,omitempty"` // entries of the kind [CIDROutside] apply to it
}

// Result is the verdict of the datapath for a new connection.
type Result struct {
	Allowed bool   `json:"allowed"`
	Entry   *Entry `json:"entry,omitempty"` // the entry that decided; nil when none did
	// Localhost is set if the peer is the local host, which is allowed to connect to its endpoints.
	Localhost bool `json:"localhost,omitempty"`
}

// Lookup evaluates a connection as the datapath does. Unless the connection comes from the local host and is therefore allowed, Lookup looks up each class of
// keys that has entries, and the longest match among ranges. Any matching deny denies; otherwise any matching allow allows.
func (c *Compiled) Lookup(p Peer, protocol uint8, port uint16) Result {
	if c.allowsAll {
		return Result{Allowed: true}
	}
	if p.Identity == identity.Unknown {
		return Result{}
	}
	if c.localhost && p.Identity == identity.Host {
		return Result{Allowed: true, Localhost: true}
	}
	var answer Result
	for _, key := range c.peers(p) {
		g := c.find(key)
		if g == nil {
			continue
		}
		for _, e := range g.hits(protocol, port) {
			if e == nil {
				continue
			}
			entry := g.entry(*e)
			if e.deny {
				return Result{Entry: &entry}
			}
			if answer.Entry == nil {
				answer = Result{Allowed: true, Entry: &entry}
			}
		}
	}
	return answer
}

// peers lists the peers whose entries apply to p: every peer, its identity, its classes and its named CIDRs.
func (c *Compiled) peers(p Peer) []peer {
	list := []peer{{Any, 0}, {Identity, p.Identity}}
	if p.Classes != (Classes{}) {
		list = append(list, peer{Class, p.Classes.Cluster}, peer{Class, p.Classes.Namespace})
	}
	for _, number := range p.CIDRs {
		list = append(list, peer{CIDR, number})
		if p.Outside {
			list = append(list, peer{CIDROutside, number})
		}
		if !c.nested || c.stops(number) {
			break
		}
	}
	return list
}

// stops reports whether a named CIDR has a [Stop] entry, so that entries about the CIDRs around it do not apply to it.
func (c *Compiled) stops(number uint32) bool {
	g := c.find(peer{CIDR, number})
	return g != nil && slices.ContainsFunc(g.entries, func(e entry) bool { return e.protocol == Stop })
}

// hits returns the entries that the lookups of one kind find: for all protocols, for the protocol, for the port, and for the longest range.
func (g *group) hits(protocol uint8, port uint16) (hits [4]*entry) {
	for i := range g.entries {
		e := &g.entries[i]
		switch key := g.key(*e); {
		case key.IsStop():
		case e.protocol != 0 && e.protocol != protocol || port < e.port || port > key.LastPort():
		case key.IsRange():
			if hits[3] == nil || hits[3].bits < e.bits {
				hits[3] = e
			}
		default:
			hits[key.level()] = e
		}
	}
	return hits
}

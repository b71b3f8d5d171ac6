package policymap

import (
	"slices"

	"github.com/waggle-net/waggle/pkg/identity"
)

// Peer is whom the datapath takes a packet's other end for.
type Peer struct {
	Identity uint32   `json:"identity"`          // of its endpoint, node or world; 0 when unknown, whom no rule allows
	Classes  Classes  `json:"classes,omitzero"`  // of its identity
	CIDRs    []uint32 `json:"cidrs,omitempty"`   // of the named CIDRs that hold its address, the longest first
	Outside  bool     `json:"outside,omitempty"` // entries of the kind [CIDROutside] count for it
}

// Answer is what the datapath says of a new connection.
type Answer struct {
	Allowed bool   `json:"allowed"`
	Entry   *Entry `json:"entry,omitempty"` // the one that decided; nil when none did
	// Localhost: the peer is the local host, which reaches its endpoints.
	Localhost bool `json:"localhost,omitempty"`
}

// Lookup judges a connection as the datapath does: unless it comes from the local host, it looks up each class of keys that
// there is, and of ranges the longest match; any hit that denies denies, and else any hit allows.
func (c *Compiled) Lookup(p Peer, protocol uint8, port uint16) Answer {
	if c.allowsAll {
		return Answer{Allowed: true}
	}
	if p.Identity == identity.Unknown {
		return Answer{}
	}
	if c.localhost && p.Identity == identity.Host {
		return Answer{Allowed: true, Localhost: true}
	}
	var answer Answer
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
				return Answer{Entry: &entry}
			}
			if answer.Entry == nil {
				answer = Answer{Allowed: true, Entry: &entry}
			}
		}
	}
	return answer
}

// peers are those whose entries count for a peer.
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

// stops reports whether the CIDRs around one do not count in it.
func (c *Compiled) stops(number uint32) bool {
	g := c.find(peer{CIDR, number})
	return g != nil && slices.ContainsFunc(g.entries, func(e entry) bool { return e.protocol == Stop })
}

// hits are what the look-ups of one kind find: everything, the protocol, the port, and the longest range.
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

package policymap

import "github.com/waggle-net/waggle/pkg/identity"

// Peer is whom the datapath takes a packet's other end for.
type Peer struct {
	Identity uint32 `json:"identity"`          // of its endpoint, node or world; 0 when unknown, whom no rule allows
	CIDR     uint32 `json:"cidr"`              // of the longest named CIDR that holds its address; 0 when none does
	Outside  bool   `json:"outside,omitempty"` // entries of the kind [CIDROutside] count for it
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
	for _, key := range [...]peer{{Any, 0}, {Identity, p.Identity}, {CIDR, p.CIDR}, {CIDROutside, p.CIDR}} {
		if key.kind == CIDROutside && !p.Outside || key.kind >= CIDR && p.CIDR == 0 {
			continue
		}
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

// hits are what the look-ups of one kind find: everything, the protocol, the port, and the longest range.
func (g *group) hits(protocol uint8, port uint16) (hits [4]*entry) {
	for i := range g.entries {
		e := &g.entries[i]
		switch key := g.key(*e); {
		case e.protocol != 0 && e.protocol != protocol || port < e.port || port > key.LastPort():
		case key.IsRange():
			if hits[3] == nil || hits[3].bits < e.bits {
				hits[3] = e
			}
		default:
			hits[key.class()%levels] = e
		}
	}
	return hits
}

package policymap

// Kind says whom an entry is about. The numbers are those of the datapath.
type Kind uint8

const (
	Any         Kind = 0 // everybody; the identity is 0
	Identity    Kind = 1 // who has the identity
	CIDR        Kind = 2 // whoever has an address in the named CIDR
	CIDROutside Kind = 3 // the same, but only peers outside the cluster
	Class       Kind = 4 // all identities of a class: see [Classes]
)

// Key is what an entry speaks of. PortBits 0 is all ports of the protocol, and with protocol 0 everything; 16 is one port.
// What lies between is a range, which belongs into the map policy_ranges.
type Key struct {
	Identity uint32 `json:"identity"` // of an endpoint, of a named CIDR or of a class, by kind
	Kind     Kind   `json:"kind"`
	Protocol uint8  `json:"protocol"`
	PortBits uint8  `json:"portBits"` // how many bits of the port count, from the highest
	Port     uint16 `json:"port"`     // the first of the range; for ICMP the type
}

// IsRange tells whether the entry belongs into policy_ranges.
func (k Key) IsRange() bool { return k.PortBits > 0 && k.PortBits < 16 }

// LastPort is the last port that the key speaks of.
func (k Key) LastPort() uint16 { return k.Port | ^uint16(0)>>k.PortBits }

// Entry is one entry of a map.
type Entry struct {
	Key
	Rule uint32 `json:"rule"` // cookie: see [Compiled.Rule]
	Deny bool   `json:"deny,omitempty"`
}

const (
	// CookieNotIsolated stands for no rule: everything is allowed that no policy denies.
	CookieNotIsolated uint32 = 0
	cookieMin         uint32 = 16 // of rules
)

// Stop is the protocol of an entry about a named CIDR that says: the CIDRs around this one do not count in it. It is a deny, and no protocol of a packet.
const Stop uint8 = 255

// IsStop reports whether a key is that of such an entry.
func (k Key) IsStop() bool { return k.Protocol == Stop && k.Kind == CIDR }

// Classes of keys: a bit of the shape each, as the datapath numbers them. Bits 16 and 17 stand for no class.
const (
	levels          = 3 // in the map policy, of each kind: everything, a protocol, a port
	firstRangeClass = 4 * levels
	stopClass       = 18
	firstOfClasses  = 19 // of the kind [Class]: its levels, then its ranges
	classes         = firstOfClasses + levels + 1
)

// Bits of a shape that do not stand for a kind of keys.
const (
	ShapeLocalhost uint32 = 1 << 16        // the local host is allowed, whatever the entries say
	ShapeNested    uint32 = 1 << 17        // entries about a named CIDR count in those inside it
	ShapeStops     uint32 = 1 << stopClass // there are entries of [Stop]
)

// ShapeClasses are the bits of a shape that has entries of the kind [Class].
const ShapeClasses uint32 = (1<<(levels+1) - 1) << firstOfClasses

// level returns how much a key that is not a range says of the upper protocol: 0 nothing, 1 the protocol, 2 the protocol and a port.
func (k Key) level() int {
	switch {
	case k.PortBits == 16:
		return 2
	case k.Protocol != 0:
		return 1
	}
	return 0
}

// class returns the class of a key, a bit of the shape.
func (k Key) class() int {
	switch {
	case k.IsStop():
		return stopClass
	case k.Kind == Class && k.IsRange():
		return firstOfClasses + levels
	case k.Kind == Class:
		return firstOfClasses + k.level()
	case k.IsRange():
		return firstRangeClass + int(k.Kind)
	}
	return int(k.Kind)*levels + k.level()
}

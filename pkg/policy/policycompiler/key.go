package policycompiler

// Kind is the kind of peer of an entry. The datapath uses the same numbers.
type Kind uint8

const (
	Any         Kind = 0 // every peer; the identity is 0
	Identity    Kind = 1 // peers with the identity
	CIDR        Kind = 2 // peers with an address in the named CIDR
	CIDROutside Kind = 3 // peers outside the cluster with an address in the named CIDR
	Class       Kind = 4 // peers with an identity of the class: see [Classes]
)

// Key is the key of an entry: a peer and its ports. PortBits 0 means all ports of the protocol, and all protocols with protocol 0; 16 means one port. Any other
// value means a range of ports, and the entry belongs to the map policy_ranges.
type Key struct {
	Identity uint32 `json:"identity"` // of an endpoint, of a named CIDR or of a class, by kind
	Kind     Kind   `json:"kind"`
	Protocol uint8  `json:"protocol"`
	PortBits uint8  `json:"portBits"` // number of significant bits of the port, from the highest
	Port     uint16 `json:"port"`     // the first of the range; for ICMP the type
}

// IsRange reports whether the entry belongs to the map policy_ranges.
func (k Key) IsRange() bool { return k.PortBits > 0 && k.PortBits < 16 }

// LastPort returns the last port of the key's range.
func (k Key) LastPort() uint16 { return k.Port | ^uint16(0)>>k.PortBits }

// Entry is one entry of a map.
type Entry struct {
	Key
	Rule uint32 `json:"rule"` // cookie: see [Compiled.Rule]
	Deny bool   `json:"deny,omitempty"`
}

const (
	// CookieNotIsolated names no rule. It is the cookie of the entry that allows every connection that no policy denies, where no policy isolates the endpoint.
	CookieNotIsolated uint32 = 0
	cookieMin         uint32 = 16 // lowest cookie of a rule
)

// Stop is the protocol of an entry that ends the nesting of a named CIDR: entries about the CIDRs around it do not apply inside it. The entry is a deny. No
// packet has this protocol.
const Stop uint8 = 255

// IsStop reports whether an entry ends the nesting of a named CIDR: see [Stop].
func (k Key) IsStop() bool { return k.Protocol == Stop && k.Kind == CIDR }

// Classes of keys. The number of a class is its bit in the shape, as in the datapath. Bits 16 and 17 are not classes.
const (
	levels          = 3 // in the map policy, of each kind: all protocols, a protocol, a port
	firstRangeClass = 4 * levels
	stopClass       = 18
	firstOfClasses  = 19 // of the kind [Class]: its levels, then its ranges
	classes         = firstOfClasses + levels + 1
)

// Named bits of a shape.
const (
	ShapeLocalhost uint32 = 1 << 16        // the local host is allowed regardless of the entries
	ShapeNested    uint32 = 1 << 17        // entries about a named CIDR also apply to the named CIDRs inside it
	ShapeStops     uint32 = 1 << stopClass // there are entries with the protocol [Stop]
)

// ShapeClasses is the mask of the bits for entries of the kind [Class].
const ShapeClasses uint32 = (1<<(levels+1) - 1) << firstOfClasses

// level returns the level of a key that is not a range: 0 for all protocols, 1 for a protocol, 2 for a protocol and a port.
func (k Key) level() int {
	switch {
	case k.PortBits == 16:
		return 2
	case k.Protocol != 0:
		return 1
	}
	return 0
}

// class returns the class of a key, which is the number of a bit of the shape.
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

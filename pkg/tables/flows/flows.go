// Package flows holds what connections were made and refused on this node lately, as far as the datapath told: one row for
// all connections of the same two addresses to the same port.
package flows

import (
	"net/netip"
	"strconv"
	"time"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"

	"github.com/waggle-net/waggle/pkg/dissect"
	"github.com/waggle-net/waggle/pkg/policy"
)

// Verdict is what became of a connection.
type Verdict string

const (
	Allowed Verdict = "allowed"
	Denied  Verdict = "denied"
	Audited Verdict = "audited" // allowed, and denied if policies in audit mode counted
)

// Flow is one row.
type Flow struct {
	Endpoint  uint16           `json:"endpoint"`  // local id of the endpoint whose policy was asked
	Direction policy.Direction `json:"direction"` // as that endpoint sees it
	Protocol  uint8            `json:"protocol"`  // of IP
	Port      uint16           `json:"port"`      // that was connected to; for ICMP the type; 0 when the protocol has none
	Src       netip.Addr       `json:"src"`       // who connected
	Dst       netip.Addr       `json:"dst"`
	Peer      uint32           `json:"peer"`    // identity of the other side at the last time; 0 when it was not known
	Verdict   Verdict          `json:"verdict"` // of the last time
	Reason    uint8            `json:"reason"`  // number of the reason for which it was denied; 0 otherwise
	Count     uint64           `json:"count"`   // events; the datapath reports a share of them when they are many
	First     time.Time        `json:"first"`
	Last      time.Time        `json:"last"`
}

// Own is the address of the endpoint, Other that of its peer.
func (f *Flow) Own() netip.Addr {
	if f.Direction == policy.Egress {
		return f.Src
	}
	return f.Dst
}

// Other is the address of the endpoint's peer.
func (f *Flow) Other() netip.Addr {
	if f.Direction == policy.Egress {
		return f.Dst
	}
	return f.Src
}

// Key is what all connections of a row have in common.
type Key struct {
	Endpoint  uint16
	Direction policy.Direction
	Protocol  uint8
	Port      uint16
	Src, Dst  netip.Addr
}

// Key returns the key of a row.
func (f *Flow) Key() Key { return Key{f.Endpoint, f.Direction, f.Protocol, f.Port, f.Src, f.Dst} }

// String is "endpoint/direction/protocol/port/source/destination".
func (k Key) String() string {
	return strconv.Itoa(int(k.Endpoint)) + "/" + k.Direction.String() + "/" + dissect.Protocol(k.Protocol) + "/" +
		strconv.Itoa(int(k.Port)) + "/" + k.Src.String() + "/" + k.Dst.String()
}

// TableHeader implements statedb.TableWritable.
func (*Flow) TableHeader() []string {
	return []string{"Endpoint", "Direction", "Source", "Destination", "Proto", "Port", "Peer", "Count", "Last", "Verdict"}
}

// TableRow implements statedb.TableWritable.
func (f *Flow) TableRow() []string {
	return []string{strconv.Itoa(int(f.Endpoint)), f.Direction.String(), f.Src.String(), f.Dst.String(), dissect.Protocol(f.Protocol),
		strconv.Itoa(int(f.Port)), strconv.FormatUint(uint64(f.Peer), 10), strconv.FormatUint(f.Count, 10),
		f.Last.UTC().Format(time.RFC3339), string(f.Verdict)}
}

var keyIndex = statedb.Index[*Flow, Key]{
	Name:       "flow",
	FromObject: func(f *Flow) index.KeySet { return index.NewKeySet(index.String(f.Key().String())) },
	FromKey:    func(k Key) index.Key { return index.String(k.String()) },
	FromString: index.FromString,
	Unique:     true,
}

var endpointIndex = statedb.Index[*Flow, uint16]{
	Name:       "endpoint",
	FromObject: func(f *Flow) index.KeySet { return index.NewKeySet(index.Uint16(f.Endpoint)) },
	FromKey:    index.Uint16,
	FromString: index.Uint16String,
}

// Queries.
var (
	ByKey      = keyIndex.Query
	ByEndpoint = endpointIndex.Query
)

// NewTable makes the table "flows".
func NewTable(db *statedb.DB) (statedb.RWTable[*Flow], error) {
	return statedb.NewTable(db, "flows", keyIndex, endpointIndex)
}

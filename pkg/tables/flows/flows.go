// Package flows holds recent connections of this node, allowed and denied, as far as the datapath reported them. All connections between the same two
// addresses to the same port share one row.
package flows

import (
	"net/netip"
	"strconv"
	"time"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"

	"github.com/waggle-net/waggle/pkg/dissect"
	"github.com/waggle-net/waggle/pkg/indexes"
	"github.com/waggle-net/waggle/pkg/policy"
)

// Verdict is the policy verdict on a connection.
type Verdict string

const (
	Allowed Verdict = "allowed"
	Denied  Verdict = "denied"
	Audited Verdict = "audited" // allowed, but denied if policies in audit mode counted
)

// Flow is one row.
type Flow struct {
	Endpoint  uint16           `json:"endpoint"`  // local id of the endpoint whose policy was evaluated
	Direction policy.Direction `json:"direction"` // from the view of that endpoint
	Protocol  uint8            `json:"protocol"`  // IP protocol number
	Port      uint16           `json:"port"`      // destination port; for ICMP the type; 0 if the protocol has none
	Src       netip.Addr       `json:"src"`       // initiator
	Dst       netip.Addr       `json:"dst"`
	Peer      uint32           `json:"peer"`    // last known identity of the peer; 0 if unknown
	Verdict   Verdict          `json:"verdict"` // of the last event
	Reason    uint8            `json:"reason"`  // number of the drop reason; 0 if not denied
	Count     uint64           `json:"count"`   // events; the datapath reports only a part of many
	First     time.Time        `json:"first"`
	Last      time.Time        `json:"last"`
}

// Own returns the address of the endpoint.
func (f *Flow) Own() netip.Addr {
	if f.Direction == policy.Egress {
		return f.Src
	}
	return f.Dst
}

// Other returns the address of the endpoint's peer.
func (f *Flow) Other() netip.Addr {
	if f.Direction == policy.Egress {
		return f.Dst
	}
	return f.Src
}

// Key identifies a row: the values that all its connections share.
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

var endpointIndex = indexes.Shared("endpoint", indexes.Uint16, func(f *Flow) uint16 { return f.Endpoint })

// NewTable makes the table "flows".
func NewTable(db *statedb.DB) (statedb.RWTable[*Flow], error) {
	return statedb.NewTable(db, "flows", keyIndex, endpointIndex)
}

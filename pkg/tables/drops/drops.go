// Package drops holds the packets that the datapath dropped recently, each with the reason.
package drops

import (
	"cmp"
	"net/netip"
	"strconv"
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/indexes"
)

// Drop is one dropped packet that was reported. The datapath counts all drops and reports a part of them, limited by a token bucket for each endpoint.
type Drop struct {
	Seq        uint64     `json:"seq"`        // rises by one with each row since the agent started
	Time       time.Time  `json:"time"`       // when the agent read the event
	Reason     uint8      `json:"reason"`     // number; the same as in Cilium if Cilium has the reason
	ReasonText string     `json:"reasonText"` // text of Reason
	Direction  string     `json:"direction"`  // "ingress" or "egress", from the view of the endpoint
	Endpoint   uint16     `json:"endpoint"`   // local id; 0 if unknown
	Target     uint16     `json:"target"`     // local id of the destination endpoint; 0 if unknown
	Identity   uint32     `json:"identity"`   // of the sender
	IfIndex    uint32     `json:"ifIndex"`    // device whose hook dropped the packet
	Proto      string     `json:"proto"`      // "TCP", "UDP", "ICMPv4", "ARP", ...
	Src        netip.Addr `json:"src"`        // invalid if the packet has no IP header
	Dst        netip.Addr `json:"dst"`
	SrcPort    uint16     `json:"srcPort"` // 0 if the protocol has none
	DstPort    uint16     `json:"dstPort"`
	Length     uint32     `json:"length"`   // bytes of the whole packet
	Location   string     `json:"location"` // source file and line of the program
	// Policy names, for a drop by policy, the rule that denied the packet or the nearest misses, by the policies in force when the event was read.
	Policy string `json:"policy,omitempty"`
}

// TableHeader implements statedb.TableWritable.
func (*Drop) TableHeader() []string {
	return []string{"Seq", "Time", "Reason", "Direction", "Endpoint", "Proto", "Source", "Destination", "IfIndex", "Location", "Policy"}
}

// TableRow implements statedb.TableWritable.
func (d *Drop) TableRow() []string {
	return []string{strconv.FormatUint(d.Seq, 10), d.Time.UTC().Format(time.RFC3339Nano), d.ReasonText, d.Direction,
		strconv.Itoa(int(d.Endpoint)), cmp.Or(d.Proto, "-"), side(d.Src, d.SrcPort), side(d.Dst, d.DstPort),
		strconv.FormatUint(uint64(d.IfIndex), 10), cmp.Or(d.Location, "-"), cmp.Or(d.Policy, "-")}
}

func side(a netip.Addr, port uint16) string {
	switch {
	case !a.IsValid():
		return "-"
	case port == 0:
		return a.String()
	}
	return netip.AddrPortFrom(a, port).String()
}

var seqIndex = indexes.Unique("seq", indexes.Uint64, func(d *Drop) uint64 { return d.Seq })
var endpointIndex = indexes.Shared("endpoint", indexes.Uint16, func(d *Drop) uint16 { return d.Endpoint })

// NewTable makes the table "drops".
func NewTable(db *statedb.DB) (statedb.RWTable[*Drop], error) {
	return statedb.NewTable(db, "drops", seqIndex, endpointIndex)
}

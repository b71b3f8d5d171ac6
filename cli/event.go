package cli

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"

	"github.com/waggle-net/waggle/pkg/datapath/events"
	"github.com/waggle-net/waggle/pkg/dissect"
	"github.com/waggle-net/waggle/pkg/monitorwire"
)

// event is a datapath event in the output of monitor; with -o json each event is one line.
type event struct {
	Time           string `json:"time"`
	Type           string `json:"type"` // drop, why, trace, policy-verdict, lost or unknown
	Reason         string `json:"reason,omitempty"`
	ReasonCode     uint8  `json:"reasonCode,omitempty"`
	Direction      string `json:"direction,omitempty"`
	Endpoint       uint16 `json:"endpoint,omitempty"`
	TargetEndpoint uint32 `json:"targetEndpoint,omitempty"`
	SourceIdentity uint32 `json:"sourceIdentity,omitempty"`
	TargetIdentity uint32 `json:"targetIdentity,omitempty"`
	Proto          string `json:"proto,omitempty"`
	Source         string `json:"source,omitempty"`
	Destination    string `json:"destination,omitempty"`
	IfIndex        uint32 `json:"ifIndex,omitempty"`
	Length         uint32 `json:"length,omitempty"`
	Location       string `json:"location,omitempty"`
	Point          string `json:"point,omitempty"`
	Action         string `json:"action,omitempty"` // of a verdict: allow, deny or audit (forwarded, but would be denied)
	Match          string `json:"match,omitempty"`  // of a verdict: the fields that the deciding entry matches
	RemoteIdentity uint32 `json:"remoteIdentity,omitempty"`
	Drop           uint64 `json:"drop,omitempty"`   // of a why: number of the row in the table drops
	Policy         string `json:"policy,omitempty"` // of a why: the rule that denied the packet of the preceding drop
	Lost           uint64 `json:"lost,omitempty"`
	Error          string `json:"error,omitempty"`
}

// points are the observation points of trace events, by number.
var points = []string{"to-endpoint", "to-proxy", "to-host", "to-stack", "to-overlay", "from-endpoint", "from-proxy", "from-host",
	"from-stack", "from-overlay", "from-network", "to-network"}

func describe(p monitorwire.Payload) event {
	if p.Type == monitorwire.TypeLost {
		return event{Type: "lost", Lost: p.Lost}
	}
	decoded, err := events.DecodeWire(p.Data)
	if err != nil {
		return event{Type: "unknown", Error: err.Error()}
	}
	switch d := decoded.(type) {
	case *events.Drop:
		e := withPacket(d.Header)
		e.Type, e.Reason, e.ReasonCode, e.Direction = "drop", d.Reason.String(), uint8(d.Reason), d.Direction()
		e.TargetEndpoint, e.SourceIdentity, e.TargetIdentity, e.IfIndex = d.DestinationID, d.SourceIdentity, d.DestinationIdentity, d.IfIndex
		e.Location = fmt.Sprintf("%s:%d", d.File, d.Line)
		return e
	case *events.Trace:
		e := withPacket(d.Header)
		e.Type, e.Point = "trace", fmt.Sprint(d.Point)
		if int(d.Point) < len(points) {
			e.Point = points[d.Point]
		}
		e.TargetEndpoint, e.IfIndex = uint32(d.DestinationID), d.IfIndex
		e.SourceIdentity, e.TargetIdentity = d.SourceIdentity, d.DestinationIdentity
		return e
	case *events.Note:
		return event{Type: kindWhy, Endpoint: d.Endpoint, Drop: d.Drop, Policy: d.Policy}
	case *events.Verdict:
		e := withPacket(d.Header)
		e.Type, e.Action, e.Direction, e.Match, e.RemoteIdentity = kindVerdict, d.Action(), d.Direction(), d.Match.String(), d.RemoteIdentity
		if r := d.Reason(); r != events.Forwarded {
			e.Reason, e.ReasonCode = r.String(), uint8(r)
		}
		return e
	}
	return event{Type: "unknown", Error: fmt.Sprintf("event of type %T", decoded)}
}

func withPacket(h events.Header) event {
	s := dissect.Ethernet(h.Packet)
	return event{Endpoint: h.Endpoint, Length: h.Length, Proto: s.Proto, Source: side(s.Src, s.SrcPort), Destination: side(s.Dst, s.DstPort)}
}

func side(a netip.Addr, port uint16) string {
	switch {
	case !a.IsValid():
		return ""
	case port == 0:
		return a.String()
	}
	return netip.AddrPortFrom(a, port).String()
}

// text returns the event as one line of text.
func (e event) text() string {
	switch e.Type {
	case "lost":
		return fmt.Sprintf("!! %d events were lost: they arrive faster than they are read", e.Lost)
	case "unknown":
		return "?? " + e.Error
	case kindWhy:
		return "   policy: " + e.Policy
	case kindVerdict:
		return e.verdictText()
	}
	var b strings.Builder
	if e.Type == "drop" {
		fmt.Fprintf(&b, "xx drop (%s) %s", e.Reason, e.Direction)
	} else {
		fmt.Fprintf(&b, "-> %s", e.Point)
	}
	fmt.Fprintf(&b, " endpoint %d, identity %d->%d", e.Endpoint, e.SourceIdentity, e.TargetIdentity)
	if e.TargetEndpoint != 0 {
		fmt.Fprintf(&b, ", to endpoint %d", e.TargetEndpoint)
	}
	fmt.Fprintf(&b, ", ifindex %d: %s %s -> %s, %d bytes", e.IfIndex, cmp.Or(e.Proto, "-"), cmp.Or(e.Source, "-"), cmp.Or(e.Destination, "-"), e.Length)
	if e.Location != "" {
		b.WriteString(" at " + e.Location)
	}
	return b.String()
}

func (e event) verdictText() string {
	action := e.Action
	if e.Reason != "" {
		action += " (" + e.Reason + ")"
	}
	return fmt.Sprintf("-- policy %s %s endpoint %d, remote identity %d, match %s: %s %s -> %s", action, e.Direction, e.Endpoint,
		e.RemoteIdentity, e.Match, cmp.Or(e.Proto, "-"), cmp.Or(e.Source, "-"), cmp.Or(e.Destination, "-"))
}

// Package nodehealth defines the table of probed node addresses, with the results and times of the probes.
package nodehealth

import (
	"cmp"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"

	"github.com/waggle-net/waggle/pkg/column"
	"github.com/waggle-net/waggle/pkg/printable"
)

// State is the reachability of an address or a node.
type State string

// States. A probe that was not sent, or that failed for a reason on this node, is no evidence about another node.
const (
	Unknown     State = "unknown"     // no verdict yet, or no longer
	Reachable   State = "reachable"   // the last probes were answered
	Unreachable State = "unreachable" // several probes in a row failed
)

// Kind is the role of an address of a node.
type Kind string

// Kinds. A node has at most one address of each.
const (
	Host4   Kind = "host4"   // the address by which other nodes reach the node
	Host6   Kind = "host6"   //
	Health4 Kind = "health4" // its health address, on the same path as pods of the node
	Health6 Kind = "health6" //
)

// Endpoint reports whether probes of the address take the path to pods of the node.
func (k Kind) Endpoint() bool { return k == Health4 || k == Health6 }

// IPv6 reports whether the address is an IPv6 address.
func (k Kind) IPv6() bool { return k == Host6 || k == Health6 }

// Evidence is the basis of a state.
type Evidence string

// Kinds of evidence. An address in state unknown has none.
const (
	ByProbe   Evidence = "probe"   // the last probes
	ByTraffic Evidence = "traffic" // replies of pods of the node since the last probe
)

// Check is the result of the probes of one protocol at an address.
type Check struct {
	State    State         `json:"state"`
	Latency  time.Duration `json:"latency,omitempty"` // ns from the request to the last reply; 0 without one
	Answered time.Time     `json:"answered,omitzero"` // time of the last reply; zero without one
	Asked    time.Time     `json:"asked,omitzero"`    // time at which the last probe began; zero before the first
	Strikes  int           `json:"strikes,omitempty"` // probes without a reply since the last reply, at most the threshold
	Error    string        `json:"error,omitempty"`   // of the last probe, printable; empty if it was answered
}

// Path is one row. It is never changed in place.
type Path struct {
	Node string     `json:"node"`
	UID  string     `json:"uid,omitempty"` // UID of the object of the node; another UID means another node
	Kind Kind       `json:"kind"`
	Addr netip.Addr `json:"addr"`
	// Unasked says why no probes are sent to the address; empty if probes are sent.
	Unasked string `json:"unasked,omitempty"`
	ICMP    Check  `json:"icmp"`
	HTTP    Check  `json:"http"`
	// Traffic is a time after which a packet from a pod of the node arrived; zero without one.
	Traffic time.Time `json:"traffic,omitzero"`
}

// Is reports whether both rows describe the same address of the same node.
func (p *Path) Is(o *Path) bool {
	return p.Node == o.Node && p.UID == o.UID && p.Kind == o.Kind && p.Addr == o.Addr && p.Unasked == o.Unasked
}

// State returns the state of the address: unreachable if one protocol is, otherwise reachable if one protocol is. Without a verdict of probes it is
// reachable if pods of the node have replied since the last probe.
func (p *Path) State() State {
	state := Worst(p.ICMP.State, p.HTTP.State)
	if state == Unknown && p.Traffic.After(p.LastProbe()) {
		return Reachable
	}
	return state
}

// Evidence returns the basis of the state.
func (p *Path) Evidence() Evidence {
	switch state := p.State(); {
	case state == Reachable && p.Traffic.After(p.LastProbe()):
		return ByTraffic
	case state == Reachable || state == Unreachable:
		return ByProbe
	}
	return ""
}

// Worst combines the states of two parts: unreachable if one is unreachable; an unknown part does not count.
func Worst(a, b State) State {
	for _, s := range []State{Unreachable, Reachable, Unknown} {
		if a == s || b == s {
			return s
		}
	}
	return ""
}

// LastProbe returns the start of the last probe, zero before the first.
func (p *Path) LastProbe() time.Time {
	if p.HTTP.Asked.After(p.ICMP.Asked) {
		return p.HTTP.Asked
	}
	return p.ICMP.Asked
}

// Problem returns the error of the last probes, or why no probes are sent.
func (p *Path) Problem() string {
	var parts []string
	for _, part := range []struct{ name, text string }{{"", p.Unasked}, {"ICMP: ", p.ICMP.Error}, {"HTTP: ", p.HTTP.Error}} {
		if part.text != "" {
			parts = append(parts, part.name+printable.Text(part.text))
		}
	}
	return strings.Join(parts, "; ")
}

// TableHeader implements statedb.TableWritable.
func (*Path) TableHeader() []string {
	return []string{"Node", "Path", "Address", "State", "Evidence", "ICMP", "HTTP", "Strikes", "Asked", "Traffic", "Error"}
}

// TableRow implements statedb.TableWritable.
func (p *Path) TableRow() []string {
	return []string{printable.Text(p.Node), string(p.Kind), p.Addr.String(), string(p.State()), cmp.Or(string(p.Evidence()), "-"), p.ICMP.text(), p.HTTP.text(),
		strconv.Itoa(max(p.ICMP.Strikes, p.HTTP.Strikes)), column.Time(p.LastProbe()), column.Time(p.Traffic), p.Problem()}
}

// text returns the latency of a reachable address.
func (c Check) text() string {
	if c.State != Reachable {
		return string(c.State)
	}
	return c.Latency.Round(time.Microsecond).String()
}

// key orders rows by node, then by kind, host addresses before health addresses. Names of nodes have no slash.
func key(node string, kind Kind) string {
	order := map[Kind]string{Host4: "0", Host6: "1", Health4: "2", Health6: "3"}[kind]
	return node + "/" + cmp.Or(order, string(kind))
}

var pathIndex = statedb.Index[*Path, string]{
	Name:       "path",
	FromObject: func(p *Path) index.KeySet { return index.NewKeySet(index.String(key(p.Node, p.Kind))) },
	FromKey:    index.String,
	FromString: func(s string) (index.Key, error) {
		node, kind, _ := strings.Cut(s, "/")
		return index.String(key(node, Kind(kind))), nil
	},
	Unique: true,
}

// ByPath finds the row of an address of a node.
func ByPath(node string, kind Kind) statedb.Query[*Path] { return pathIndex.Query(key(node, kind)) }

// NewTable makes the table "node-health".
func NewTable(db *statedb.DB) (statedb.RWTable[*Path], error) {
	return statedb.NewTable(db, "node-health", pathIndex)
}

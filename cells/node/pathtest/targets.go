package pathtest

import (
	"net/netip"
	"slices"
	"time"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/icmpecho"
	"github.com/waggle-net/waggle/pkg/printable"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/tables/pathtests"
)

// peer has the addresses of a node.
type peer struct {
	uid    string     // UID of the node object
	inner  netip.Addr // address inside the tunnel; without a tunnel, the first address in a pod range; invalid when the node publishes none
	router netip.Addr // address from which the node sends into the tunnel; invalid when the node publishes none
	host   netip.Addr // address in the underlay
	pods   families   // addresses in the node's pod ranges; invalid with a tunnel
	routed bool       // the node publishes that it receives no tunnel traffic of this node, so routes to it bypass the tunnel
	// hops are the next hops of the direct path in IPv4 and IPv6; invalid without --routing-mode=hybrid, of a node that accepts only its tunnel, and in a family without an address.
	hops families
}

// families is an IPv4 and an IPv6 address. An address of a disabled family is invalid.
type families [2]netip.Addr

// inside returns the addresses of a node in its pod ranges.
func inside(n *nodes.Node, a agentconfig.Agent) (f families) {
	if a.EnableIPv4 {
		f[0] = insideOf(n, false)
	}
	if a.EnableIPv6 {
		f[1] = insideOf(n, true)
	}
	return f
}

// requests returns the echo requests between the addresses of two nodes, one in each family in which both have an address.
func (f families) requests(to families) (all []icmpecho.Request) {
	for i, addr := range to {
		if addr.IsValid() && f[i].IsValid() {
			all = append(all, icmpecho.Request{From: f[i], To: addr})
		}
	}
	return all
}

// peerOf returns the addresses of a node. IPv4 is preferred inside the tunnel; a test of one family covers the other one, because both have the same outer
// headers.
func peerOf(n *nodes.Node, a agentconfig.Agent) (p peer) {
	p.uid, p.host = n.UID, n.Address(a.UnderlayIPv6 || !a.EnableIPv4)
	p.routed = n.Receives.Known && !n.Receives.Tunnel(a.TunnelPort, a.UnderlayIPv6)
	if a.Hybrid && n.Receives.AcceptsDirect() {
		p.hops = families{n.Address(false), n.Address(true)}
	}
	if !a.Tunnel() {
		p.pods = inside(n, a)
	}
	for _, ipv6 := range []bool{false, true} {
		if ipv6 && !a.EnableIPv6 || !ipv6 && !a.EnableIPv4 {
			continue
		}
		for _, kind := range []string{nodes.HealthIP, nodes.CiliumInternalIP} {
			if addr := n.Typed(kind, ipv6); addr.IsValid() {
				p.inner, p.router = addr, n.Typed(nodes.CiliumInternalIP, ipv6)
				return p
			}
		}
	}
	return p
}

// target is a node with its rows and its schedule.
type target struct {
	name      string
	peer      peer
	rows      []*pathtests.Test // rows of the table, in the order of the kinds
	due       time.Time         // time of the next visit
	urgent    bool              // visited in turn with other due targets, however many they are
	busy      bool              // a visit is running
	flows     bool              // pods of this node have flows with pods of the node
	trouble   error             // the error of the last test if this node could not run it; nil otherwise
	queue     *queue            // the queue that contains the target; nil without one
	place     int               // index in queue
	unhealed  int               // visits since corrupt checksums were found, while the path is not healed
	suspected time.Time         // start of the first visit in a row in which echo failed
}

// shown returns the name for messages.
func (t *target) shown() string { return printable.Short(t.name, maxDetail) }

// row returns the row of a kind; nil without one.
func (t *target) row(kind pathtests.Kind) *pathtests.Test {
	if i := slices.IndexFunc(t.rows, func(r *pathtests.Test) bool { return r.Kind == kind }); i >= 0 {
		return t.rows[i]
	}
	return nil
}

// open reports whether a test has failed or recovered without enough repetitions for a verdict.
func (t *target) open() bool {
	return slices.ContainsFunc(t.rows, func(r *pathtests.Test) bool {
		return r.Strikes > 0 && r.Strikes < strikes || r.Passes > 0 && r.Relapses <= 1
	})
}

// corrupted reports whether checksums are corrupt and the path is not healed.
func (t *target) corrupted() bool {
	row := t.row(pathtests.Checksum)
	return row != nil && row.State == pathtests.Failed && row.Fault == pathtests.Corrupted
}

// failed reports whether a test of the tunnel has failed.
func (t *target) failed() bool {
	return slices.ContainsFunc(t.rows, func(r *pathtests.Test) bool { return r.State == pathtests.Failed && r.Kind != pathtests.Direct })
}

// fresh reports whether no test of the node has ever passed: the node may be starting.
func (t *target) fresh() bool {
	return !slices.ContainsFunc(t.rows, func(r *pathtests.Test) bool { return !r.Good.IsZero() })
}

// kinds returns the kinds of tests for a routing mode.
func kinds(a agentconfig.Agent) []pathtests.Kind {
	switch {
	case a.Hybrid:
		return pathtests.Kinds
	case a.Tunnel():
		return []pathtests.Kind{pathtests.Echo, pathtests.Size, pathtests.Checksum, pathtests.Aggregate}
	}
	return []pathtests.Kind{pathtests.Echo, pathtests.Size}
}

// newRows returns the rows of a node before the first test.
func newRows(name string, p peer, a agentconfig.Agent) (rows []*pathtests.Test) {
	why := ""
	switch {
	case p.inner.IsValid():
	case a.Tunnel():
		why = "the node publishes no address inside the tunnel"
	default:
		why = "the node publishes no address in its pod ranges"
	}
	for _, kind := range kinds(a) {
		rows = append(rows, &pathtests.Test{Node: name, UID: p.uid, Kind: kind, Addr: p.inner, State: pathtests.Unknown, Detail: why})
	}
	return rows
}

package pathtest

import (
	"net/netip"
	"slices"
	"time"

	"github.com/waggle-net/waggle/pkg/icmpecho"
	"github.com/waggle-net/waggle/pkg/printable"
	"github.com/waggle-net/waggle/pkg/settings"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
	tables "github.com/waggle-net/waggle/pkg/tables/pathtests"
)

// peer is where a node is reached.
type peer struct {
	uid    string     // of its object
	inner  netip.Addr // its address inside the tunnel; without a tunnel, the first valid one of pods; invalid when it publishes none
	router netip.Addr // address from which it sends into the tunnel itself; invalid when it publishes none
	host   netip.Addr // its address in the underlay
	pods   families   // its addresses in its pod ranges; invalid ones with a tunnel
	routed bool       // it has published that it receives no tunnel of this node, so routes lead past that
	// hops are by which it is reached past the tunnel, in IPv4 and IPv6; invalid ones without --routing-mode=hybrid, and in a family in which it has none.
	hops families
}

// families are addresses in IPv4 and IPv6. Those of a family that is off are invalid.
type families [2]netip.Addr

// inside are the addresses of a node in its pod ranges.
func inside(n *nodes.Node, a settings.Agent) (f families) {
	if a.EnableIPv4 {
		f[0] = insideOf(n, false)
	}
	if a.EnableIPv6 {
		f[1] = insideOf(n, true)
	}
	return f
}

// requests are the echo requests between the addresses of two nodes, one in each family in which both have one.
func (f families) requests(to families) (all []icmpecho.Request) {
	for i, addr := range to {
		if addr.IsValid() && f[i].IsValid() {
			all = append(all, icmpecho.Request{From: f[i], To: addr})
		}
	}
	return all
}

// peerOf returns the addresses of a node. IPv4 is preferred inside the tunnel; one family shows what the other one would, as both have the same outer headers.
func peerOf(n *nodes.Node, a settings.Agent) (p peer) {
	p.uid, p.host = n.UID, n.Address(a.UnderlayIPv6 || !a.EnableIPv4)
	p.routed = n.Receives.Known && !n.Receives.Tunnel(a.TunnelPort, a.UnderlayIPv6)
	if a.Hybrid {
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

// target is a node, its rows and its schedule.
type target struct {
	name      string
	peer      peer
	rows      []*tables.Test // the rows of the table, in the order of its kinds
	due       time.Time      // of the next visit
	urgent    bool           // it is visited before others that are due
	busy      bool           // a visit is under way
	flows     bool           // pods of this node have flows with pods there
	trouble   error          // why this node could not make the last test; nil when it could
	queue     *queue         // in which it waits for a visit; nil when it does not
	place     int            // there
	unhealed  int            // visits since checksums were found to be spoilt, while the path is not healed
	suspected time.Time      // beginning of the first of the visits in a row in which echo failed
}

// shown is the name for texts.
func (t *target) shown() string { return printable.Short(t.name, maxDetail) }

// row returns the row of a kind, nil without one.
func (t *target) row(kind tables.Kind) *tables.Test {
	if i := slices.IndexFunc(t.rows, func(r *tables.Test) bool { return r.Kind == kind }); i >= 0 {
		return t.rows[i]
	}
	return nil
}

// open reports whether the last test of something failed and its verdict is still open.
func (t *target) open() bool {
	return slices.ContainsFunc(t.rows, func(r *tables.Test) bool {
		return r.Strikes > 0 && r.Strikes < strikes || r.Passes > 0 && r.Relapses <= 1
	})
}

// spoilt reports whether checksums are spoilt and the path is not healed.
func (t *target) spoilt() bool {
	row := t.row(tables.Checksum)
	return row != nil && row.State == tables.Failed && row.Fault == tables.Spoilt
}

// failed reports whether a test of the tunnel has failed.
func (t *target) failed() bool {
	return slices.ContainsFunc(t.rows, func(r *tables.Test) bool { return r.State == tables.Failed && r.Kind != tables.Direct })
}

// fresh reports whether nothing of the node was ever good: it may be starting.
func (t *target) fresh() bool {
	return !slices.ContainsFunc(t.rows, func(r *tables.Test) bool { return !r.Good.IsZero() })
}

// kinds are the tests that are made.
func kinds(a settings.Agent) []tables.Kind {
	switch {
	case a.Hybrid:
		return tables.Kinds
	case a.Tunnel():
		return []tables.Kind{tables.Echo, tables.Size, tables.Checksum, tables.Aggregate}
	}
	return []tables.Kind{tables.Echo, tables.Size}
}

// newRows are the rows of a node before the first test.
func newRows(name string, p peer, a settings.Agent) (rows []*tables.Test) {
	why := ""
	switch {
	case p.inner.IsValid():
	case a.Tunnel():
		why = "the node publishes no address inside the tunnel"
	default:
		why = "the node publishes no address in its pod ranges"
	}
	for _, kind := range kinds(a) {
		rows = append(rows, &tables.Test{Node: name, UID: p.uid, Kind: kind, Addr: p.inner, State: tables.Unknown, Detail: why})
	}
	return rows
}

package pathtest

import (
	"net/netip"
	"slices"
	"time"

	"github.com/waggle-net/waggle/pkg/printable"
	"github.com/waggle-net/waggle/pkg/settings"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
	tables "github.com/waggle-net/waggle/pkg/tables/pathtests"
)

// peer is where a node is reached.
type peer struct {
	uid    string     // of its object
	inner  netip.Addr // its address inside the tunnel; invalid when it publishes none
	router netip.Addr // address from which it sends into the tunnel itself; invalid when it publishes none
	host   netip.Addr // its address in the underlay
	// hops are by which it is reached past the tunnel, in IPv4 and IPv6; invalid ones without --routing-mode=hybrid, and in a family in which it has none.
	hops [2]netip.Addr
}

// peerOf returns the addresses of a node. IPv4 is preferred inside the tunnel; one family shows what the other one would, as both have the same outer headers.
func peerOf(n *nodes.Node, a settings.Agent) (p peer) {
	p.uid, p.host = n.UID, n.Address(a.UnderlayIPv6)
	if a.Hybrid {
		p.hops = [2]netip.Addr{n.Address(false), n.Address(true)}
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
	suspected time.Time      // beginning of the first of the visits in a row in which echo failed
}

// shown is the name for texts.
func (t *target) shown() string { return printable.Short(t.name, maxDetail) }

// before reports whether a target is visited before another one when both are due.
func (t *target) before(o *target) bool {
	if t.urgent != o.urgent {
		return t.urgent
	}
	return t.due.Before(o.due)
}

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
	if a.Hybrid {
		return tables.Kinds
	}
	return slices.DeleteFunc(slices.Clone(tables.Kinds), func(k tables.Kind) bool { return k == tables.Direct })
}

// newRows are the rows of a node before the first test.
func newRows(name string, p peer, kinds []tables.Kind) (rows []*tables.Test) {
	why := ""
	if !p.inner.IsValid() {
		why = "the node publishes no address inside the tunnel"
	}
	for _, kind := range kinds {
		rows = append(rows, &tables.Test{Node: name, UID: p.uid, Kind: kind, Addr: p.inner, State: tables.Unknown, Detail: why})
	}
	return rows
}

package ciliumendpoints

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/pkg/drift"
	"github.com/waggle-net/waggle/pkg/loop"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/driftrepairs"
)

// address returns the address by which other nodes reach this one, with a tunnel the underlay address; invalid while it is unknown.
func (p params) address(txn statedb.ReadTxn) netip.Addr {
	for n := range p.Node.All(txn) {
		if p.Settings.UnderlayIPv6 {
			return cmp.Or(n.IPv6.NodeIP, n.IPv4.NodeIP)
		}
		return cmp.Or(n.IPv4.NodeIP, n.IPv6.NodeIP)
	}
	return netip.Addr{}
}

// report reports the number of objects that are not written, and the first error.
func (p params) report(ctx context.Context, health cell.Health) error {
	return loop.Run(ctx, p.DB, loop.Options{Tables: []statedb.TableMeta{p.Wanted}, Settle: settleReport}, func(r *loop.Round) error {
		total, behind, cause := 0, 0, ""
		for row := range loop.All(r, p.Wanted.ToTable()) {
			total++
			if row.Status.Kind == reconciler.StatusKindDone {
				continue
			}
			behind++
			if cause == "" {
				cause = row.Status.GetError()
			}
		}
		if cause != "" {
			health.Degraded(fmt.Sprintf("%d of %d CiliumEndpoint objects are out of date", behind, total), errors.New(cause))
		} else {
			health.OK(fmt.Sprintf("%d CiliumEndpoint objects, %d to be written", total, behind))
		}
		return nil
	})
}

// markDrift marks rows pending whose object is missing or differs.
func (p params) markDrift(now time.Time) {
	txn := p.DB.ReadTxn()
	if done, _ := p.Published.Initialized(txn); !done {
		return
	}
	drift.Mark(p.Drift, p.Wanted, txn, func(o *object) []driftrepairs.Finding {
		if now.Sub(o.Status.UpdatedAt) < fresh {
			return nil // the watch may not have delivered it yet
		}
		have, _, found := p.Published.Get(txn, cilium.EndpointByName(o.Key()))
		if !found {
			return drift.If(true, driftrepairs.Cilium, o.Key(), "missing")
		}
		return drift.If(have.Identity() != o.Identity || have.Node() != o.Node || !sameAddrs(have.Addrs(), o.addrs()),
			driftrepairs.Cilium, o.Key(), "changed")
	})
}

func sameAddrs(a, b []netip.Addr) bool {
	a, b = slices.Clone(a), slices.Clone(b)
	slices.SortFunc(a, netip.Addr.Compare)
	slices.SortFunc(b, netip.Addr.Compare)
	return slices.Equal(a, b)
}

package ipam

import (
	"context"
	"log/slog"
	"net/netip"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/podlink"
	"github.com/waggle-net/waggle/pkg/tables/nodeaddresses"
	"github.com/waggle-net/waggle/pkg/tables/nodecidrs"
)

// settle turns the burst of a start into one pass.
const settle = time.Millisecond

// ranges brings the chosen pod CIDRs, the node's own addresses and the router addresses to the allocator.
type ranges struct {
	db        *statedb.DB
	cidrs     statedb.Table[nodecidrs.Candidate]
	addresses statedb.Table[nodeaddresses.Address]
	allocator *allocator
	file      *routerFile
	log       *slog.Logger
}

type rangesParams struct {
	cell.In

	DB        *statedb.DB
	CIDRs     statedb.Table[nodecidrs.Candidate]
	Addresses statedb.Table[nodeaddresses.Address]
	Allocator *allocator
	File      *routerFile
	Log       *slog.Logger
}

func newRanges(p rangesParams) *ranges {
	return &ranges{db: p.DB, cidrs: p.CIDRs, addresses: p.Addresses, allocator: p.Allocator, file: p.File, log: p.Log}
}

// wanted is what one family should look like.
type wanted struct {
	prefix     netip.Prefix // invalid while no range is known
	waitingFor string       // why prefix is invalid
	nodeIPs    []netip.Addr // addresses of the node: never for pods
	routers    []netip.Addr // where the router address was seen, best first
}

// follow applies the ranges whenever they change. It starts when the addresses of earlier endpoints are held, so that
// a fresh router address never takes one of them.
func (r *ranges) follow(ctx context.Context, health cell.Health) error {
	health.OK("Waiting until the addresses of earlier endpoints are held")
	select {
	case <-ctx.Done():
		return nil
	case <-r.allocator.restoredDone:
	}
	kept, err := r.file.read()
	if err != nil {
		r.log.Warn("Router addresses of the last run are lost", "error", err)
	}
	for {
		txn := r.db.ReadTxn()
		watch := statedb.NewWatchSet()
		v4, v6 := r.compute(txn, watch, "ipv4", kept), r.compute(txn, watch, "ipv6", kept)
		inUse, err := r.allocator.apply(v4, v6)
		if err != nil {
			health.Degraded("apply pod CIDRs", err)
			return err
		}
		// A router address that is not known yet must not be forgotten: only what is in use replaces it.
		if remember := inUse.orElse(kept); remember != kept {
			if err := r.file.write(remember); err != nil {
				health.Degraded("remember router addresses", err)
				return err
			}
			kept = remember
		}
		r.allocator.report(health)
		if r.allocator.lacksRouter() {
			// There may be no address left for a router; then the next one that is released matters.
			_, released := r.allocator.table.AllWatch(txn)
			watch.Add(released)
		}
		if _, err := watch.Wait(ctx, settle); err != nil {
			return nil
		}
	}
}

// compute reads the tables for one family.
func (r *ranges) compute(txn statedb.ReadTxn, watch *statedb.WatchSet, family string, kept routers) wanted {
	_, changed := r.cidrs.AllWatch(txn)
	rows, addressesChanged := r.addresses.AllWatch(txn)
	watch.Add(changed, addressesChanged)
	if done, initialized := r.addresses.Initialized(txn); !done {
		watch.Add(initialized)
		return wanted{waitingFor: "the addresses of this node"}
	}
	chosen, _, ok := r.cidrs.Get(txn, nodecidrs.Chosen(family))
	if !ok {
		return wanted{waitingFor: nodecidrs.WaitingFor(txn, r.cidrs, family)}
	}
	w := wanted{prefix: chosen.Prefix}
	if addr := kept.of(family); addr.IsValid() {
		w.routers = append(w.routers, addr)
	}
	for row := range rows {
		switch {
		case !chosen.Prefix.Contains(row.Addr):
		case row.Device == podlink.HostDevice:
			w.routers = append(w.routers, row.Addr)
		default:
			w.nodeIPs = append(w.nodeIPs, row.Addr)
		}
	}
	return w
}

// orElse fills what r lacks from the other.
func (r routers) orElse(other routers) routers {
	if !r.IPv4.IsValid() {
		r.IPv4 = other.IPv4
	}
	if !r.IPv6.IsValid() {
		r.IPv6 = other.IPv6
	}
	return r
}

package ipamallocator

import (
	"context"
	"log/slog"
	"net/netip"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/loop"
	"github.com/waggle-net/waggle/pkg/podlink"
	"github.com/waggle-net/waggle/pkg/tables/nodeaddresses"
	"github.com/waggle-net/waggle/pkg/tables/nodecidrs"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// settle is the debounce interval that groups the changes of a start into one pass.
const settle = time.Millisecond

// ranges passes the chosen pod CIDRs, the node's addresses and the previous addresses of waggle_host to the allocator.
type ranges struct {
	cell.In

	DB        *statedb.DB
	CIDRs     statedb.Table[nodecidrs.Candidate]
	Addresses statedb.Table[nodeaddresses.Address]
	Memory    memory
	Settings  settings
	Allocator *allocator
	File      *routerFile
	Log       *slog.Logger
}

// wanted is the desired state of one family.
type wanted struct {
	prefix     netip.Prefix // invalid until a range is known
	waitingFor string       // the reason why prefix is invalid
	nodeIPs    []netip.Addr // addresses of the node, which pods must not get
	routers    []netip.Addr // previous router addresses, preferred ones first
	healths    []netip.Addr // previous health addresses, likewise
}

// follow applies the ranges whenever they change. It starts after the addresses of restored endpoints are held, so that a new router address is never one of
// them.
func (r ranges) follow(ctx context.Context, health cell.Health) error {
	health.OK("waiting until the addresses of previous endpoints are held")
	watchdog.Idle(ctx)
	select {
	case <-ctx.Done():
		return nil
	case <-r.Allocator.restoredDone:
	}
	kept, err := r.File.read()
	if err != nil {
		r.Log.Warn("Router addresses of the previous run are lost", "error", err)
	}
	return loop.Run(ctx, r.DB, loop.Options{Settle: settle}, func(now *loop.Round) error {
		v4, v6 := r.compute(now, "ipv4", kept), r.compute(now, "ipv6", kept)
		inUse, err := r.Allocator.apply(v4, v6)
		if err != nil {
			health.Degraded("apply pod CIDRs", err)
			return err
		}
		// A stored router address is replaced only by one that is in use, not by an unknown one.
		if remember := inUse.orElse(kept); remember != kept {
			if err := r.File.write(remember); err != nil {
				health.Degraded("store router addresses", err)
				return err
			}
			kept = remember
		}
		r.Allocator.report(health)
		if r.Allocator.routerMissing() {
			// No address may be free for a router; then the next release triggers another attempt.
			now.Watch(r.Allocator.table)
		}
		return nil
	})
}

// compute reads the desired state of one family from the tables.
func (r ranges) compute(now *loop.Round, family string, kept routers) wanted {
	now.Watch(r.CIDRs, r.Addresses)
	if !now.Complete(r.Addresses) {
		return wanted{waitingFor: "the addresses of this node"}
	}
	chosen, _, ok := r.CIDRs.Get(now.Txn, nodecidrs.Chosen(family))
	if !ok {
		return wanted{waitingFor: nodecidrs.WaitingFor(now.Txn, r.CIDRs, family)}
	}
	w := wanted{prefix: chosen.Prefix}
	router, health := kept.addresses(family)
	w.routers, w.healths = appendValid(nil, router), appendValid(nil, health)
	for row := range r.Addresses.All(now.Txn) {
		switch {
		case !chosen.Prefix.Contains(row.Addr):
		case row.Device != podlink.HostDevice:
			w.nodeIPs = append(w.nodeIPs, row.Addr)
		case row.Addr != health && row.Addr != router:
			w.routers, w.healths = append(w.routers, row.Addr), append(w.healths, row.Addr)
		}
	}
	if len(w.routers) == 0 && r.Settings.kubernetes {
		if why := r.Memory.unread(now.Txn, now.Changed); why != "" {
			return wanted{waitingFor: why}
		}
	}
	routers, healths := r.Memory.candidates(now.Txn, family)
	w.routers, w.healths = append(w.routers, routers...), append(w.healths, healths...)
	return w
}

func appendValid(list []netip.Addr, addr netip.Addr) []netip.Addr {
	if addr.IsValid() {
		list = append(list, addr)
	}
	return list
}

// orElse fills invalid addresses of r from other.
func (r routers) orElse(other routers) routers {
	if !r.IPv4.IsValid() {
		r.IPv4 = other.IPv4
	}
	if !r.IPv6.IsValid() {
		r.IPv6 = other.IPv6
	}
	if !r.HealthIPv4.IsValid() {
		r.HealthIPv4 = other.HealthIPv4
	}
	if !r.HealthIPv6.IsValid() {
		r.HealthIPv6 = other.HealthIPv6
	}
	return r
}

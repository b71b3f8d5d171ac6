package ctgc

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/natmap"
	"github.com/waggle-net/waggle/pkg/tables/devices"
	"github.com/waggle-net/waggle/pkg/tables/nodeaddresses"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// grace is how long an address may be missing before flows with it are deleted. A reconfiguration of a device removes its addresses for a moment, which is long
// on a busy machine. A flow whose address is not restored waits for replies as long.
type grace time.Duration

// since reports whether the grace period after at has passed.
func (g grace) since(at time.Time) bool { return time.Since(at) >= time.Duration(g) }

const (
	addressGrace = grace(10 * time.Second)
	// lateAddresses is the delay after which flows are scanned again: programs may have created flows with the address before they knew of its loss.
	lateAddresses = 2 * time.Second
)

// ownAddresses are the addresses of this node.
type ownAddresses struct {
	table   statedb.Table[nodeaddresses.Address]
	devices statedb.Table[devices.Address]
	grace   grace
	here    map[netip.Addr]struct{}  // nil until all are known
	left    map[netip.Addr]time.Time // time of removal of removed addresses
	changed <-chan struct{}          // closed when the table changes
	altered <-chan struct{}          // closed when the table of devices changes
	dirty   bool                     // the addresses have changed; the caller resets it
}

// read updates the addresses from the tables.
func (o *ownAddresses) read(txn statedb.ReadTxn) {
	if o.changed != nil && open(o.changed) && (o.altered == nil || open(o.altered)) {
		return
	}
	if known, initialized := o.table.Initialized(txn); !known {
		o.changed = initialized
		return
	}
	maps.DeleteFunc(o.left, func(_ netip.Addr, at time.Time) bool { return o.grace.since(at) })
	all, changed := o.table.AllWatch(txn)
	onDevices, altered := o.devices.AllWatch(txn)
	here, now := make(map[netip.Addr]struct{}), time.Now()
	for row := range all {
		here[row.Addr] = struct{}{}
	}
	for row := range onDevices {
		if isTentative(row) {
			here[row.Addr()] = struct{}{}
		}
	}
	for addr := range here {
		if _, had := o.here[addr]; !had {
			o.dirty = true
		}
		delete(o.left, addr)
	}
	for addr := range o.here {
		if _, has := here[addr]; !has {
			o.left[addr], o.dirty = now, true
		}
	}
	if o.here == nil {
		o.left, o.dirty = make(map[netip.Addr]time.Time), true
	}
	o.here, o.changed, o.altered = here, changed, altered
}

// isTentative reports whether the node is about to have an address: the kernel performs duplicate address detection for a second or more. Link-local addresses, of
// which each pod link has one, are excluded, because no flow has them as source.
func isTentative(a devices.Address) bool {
	return a.Tentative && !a.Duplicate && !a.Addr().IsLinkLocalUnicast()
}

// has reports whether an address is the node's, or was within the grace period.
func (o *ownAddresses) has(addr netip.Addr) bool {
	if _, here := o.here[addr]; here {
		return true
	}
	at, left := o.left[addr]
	return left && !o.grace.since(at)
}

// strands reports whether the source address of a translated flow no longer belongs to the node, so that no reply would arrive.
func (o *ownAddresses) strands(f *natmap.Flow) bool {
	if f.Flags&uint32(bpf.NatMasquerade|bpf.NatRedirect) == 0 {
		return false
	}
	addr := f.Becomes().Source.Addr()
	if f.Reply() {
		addr = f.Key.Tuple().Destination.Addr()
	}
	return !o.has(addr)
}

// end deletes a stranded flow, and returns the number of deleted entries. Addresses are read after flows, because a flow is created after its address.
func (o *ownAddresses) end(p *pass, f *natmap.Flow) (uint64, error) {
	o.read(p.db.ReadTxn())
	if !o.strands(f) {
		return 0, nil
	}
	return p.deletePair(f, o.strands)
}

// followNode deletes translated flows whose address the node has lost, so that the next packet gets another address.
func (a *access) followNode(ctx context.Context, health cell.Health) error {
	health.OK("waiting for the addresses of the node")
	own := &ownAddresses{table: a.nodes, devices: a.devices, grace: a.grace}
	var due []time.Time // scans; a change does not postpone the next one
	for {
		watchdog.Busy(ctx)
		own.read(a.db.ReadTxn())
		if own.dirty {
			own.dirty = false
			at := time.Now().Add(time.Duration(a.grace))
			due = append(due[:min(1, len(due))], at, at.Add(lateAddresses))
		}
		var timer <-chan time.Time
		if len(due) > 0 {
			timer = time.After(time.Until(due[0]))
		}
		watchdog.Idle(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-own.changed:
			continue
		case <-own.altered:
			continue
		case <-timer:
			due = due[1:]
		}
		watchdog.Busy(ctx)
		ended, err := a.collectStranded(own.end)
		if err != nil {
			return fmt.Errorf("collect flows of removed node addresses: %w", err)
		}
		health.OK(fmt.Sprintf("the node has %d addresses; %d entries of flows of removed addresses were deleted", len(own.here), ended))
	}
}

// collectStranded scans all translated flows; end deletes stranded ones. It returns the number of deleted entries.
func (a *access) collectStranded(end func(*pass, *natmap.Flow) (uint64, error)) (ended uint64, err error) {
	for _, m := range natmap.Maps() {
		n, err := a.collectStrandedOf(m, end)
		a.publishStranded(m.Name, n)
		ended += n
		if err != nil {
			return ended, err
		}
	}
	return ended, nil
}

// collectStrandedOf scans one map.
func (a *access) collectStrandedOf(m natmap.Map, end func(*pass, *natmap.Flow) (uint64, error)) (deleted uint64, err error) {
	p := &pass{access: a}
	r, _, err := a.nat.ReadNat(m)
	if err != nil {
		return 0, err
	}
	defer r.Close()
	for last := false; !last; {
		var flows []natmap.Flow
		if flows, last, err = r.Next(); err != nil {
			return deleted, err
		}
		for i := range flows {
			n, err := end(p, &flows[i])
			deleted += n
			if err != nil {
				return deleted, err
			}
		}
	}
	return deleted, nil
}

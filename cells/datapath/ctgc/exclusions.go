package ctgc

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/natmap"
	"github.com/waggle-net/waggle/pkg/tables/masquerade"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// replyTicks is the maximum difference, in ticks, between the expiry of the initiator's entry and the expiry of the reply entry of a flow that gets replies.
const replyTicks = 1

// exclusionRescans are the delays after a new prefix at which flows are scanned again. At the first scan, a flow that began just before the prefix has not yet sent for
// more than replyTicks without a reply.
var exclusionRescans = []time.Duration{3 * time.Second, 6 * time.Second}

// longestExclusionRest bounds the pauses that limit the CPU use of scans: until a scan, flows of pods to new prefixes get no replies.
const longestExclusionRest = 2 * time.Second

// excludedPrefixes are the prefixes towards which pods keep their addresses, as programs know them.
type excludedPrefixes struct {
	table    statedb.Table[*masquerade.Exclusion]
	prefixes map[netip.Prefix]struct{}
	bits     []int           // the distinct lengths of the prefixes
	changed  <-chan struct{} // closed when the table changes
	dirty    bool            // a prefix was added; the caller resets it
}

// read updates the prefixes from the table.
func (k *excludedPrefixes) read(txn statedb.ReadTxn) {
	if k.changed != nil && open(k.changed) {
		return
	}
	rows, changed := k.table.AllWatch(txn)
	prefixes := make(map[netip.Prefix]struct{})
	k.bits = nil
	for row := range rows {
		if row.Status.Kind != reconciler.StatusKindDone {
			continue
		}
		prefixes[row.Prefix] = struct{}{}
		if !slices.Contains(k.bits, row.Prefix.Bits()) {
			k.bits = append(k.bits, row.Prefix.Bits())
		}
		if _, had := k.prefixes[row.Prefix]; !had {
			k.dirty = true
		}
	}
	k.prefixes, k.changed = prefixes, changed
}

func (k *excludedPrefixes) has(addr netip.Addr) bool {
	return slices.ContainsFunc(k.bits, func(bits int) bool {
		prefix, err := addr.Prefix(bits)
		_, found := k.prefixes[prefix]
		return err == nil && found
	})
}

// outdated reports whether a flow is masqueraded although its destination is excluded now, and gets no reply. Such a flow begins while the pod range of another
// node is not known, and lasts while the pod sends. A flow with replies is not outdated, because its peer knows the flow by the address of the node.
func (k *excludedPrefixes) outdated(nat natKernel, f *natmap.Flow) (bool, error) {
	if f.Reply() || f.Flags&uint32(bpf.NatMasquerade) == 0 || f.Flags&uint32(bpf.NatSenderEstablished) != 0 || !k.has(f.Key.Tuple().Destination.Addr()) {
		return false, nil
	}
	if f.Key.Tuple().Protocol == unix.IPPROTO_TCP {
		return true, nil // no segment has followed the first one
	}
	reply, found, err := nat.LookupNat(&f.Reverse)
	return err == nil && (!found || int32(f.Expires-reply.Expires) > replyTicks), err
}

// followExclusions deletes masqueraded flows whose destination is excluded now and that get no reply.
func (a *access) followExclusions(ctx context.Context, health cell.Health) error {
	health.OK("waiting for the prefixes that are excluded from masquerading")
	excluded := &excludedPrefixes{table: a.exclusions}
	var due []time.Time                         // scans of the last change
	scans := newScanLimit(longestExclusionRest) // while nodes join a large cluster, prefixes are added all the time
	for {
		watchdog.Busy(ctx)
		cost := scans.Measure(func() { excluded.read(a.db.ReadTxn()) })
		if watchdog.Sleep(ctx, scans.After(cost)) != nil {
			return nil
		}
		if excluded.dirty {
			excluded.dirty, due = false, []time.Time{time.Now()}
			for _, late := range exclusionRescans {
				due = append(due, due[0].Add(late))
			}
		}
		var timer <-chan time.Time
		if len(due) > 0 {
			timer = time.After(time.Until(due[0]))
		}
		watchdog.Idle(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-excluded.changed:
			continue
		case <-timer:
			due = due[1:]
		}
		watchdog.Busy(ctx)
		var ended uint64
		var err error
		cost = scans.Measure(func() { ended, err = a.collectStranded(excluded.end) })
		if err != nil {
			return fmt.Errorf("collect masqueraded flows to excluded prefixes: %w", err)
		}
		health.OK(fmt.Sprintf("%d prefixes are excluded from masquerading; %d entries of masqueraded flows to them were deleted", len(excluded.prefixes), ended))
		if watchdog.Sleep(ctx, scans.After(cost)) != nil {
			return nil
		}
	}
}

// end deletes an outdated flow, and returns the number of deleted entries.
func (k *excludedPrefixes) end(p *pass, f *natmap.Flow) (uint64, error) {
	outdated, err := k.outdated(p.nat, f)
	if err != nil || !outdated {
		return 0, err
	}
	return p.deletePair(f, func(e *natmap.Flow) bool {
		return e.Endpoint == f.Endpoint && e.Flags&uint32(bpf.NatSenderEstablished) == 0
	})
}

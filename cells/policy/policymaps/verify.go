package policymaps

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/drift"
	"github.com/waggle-net/waggle/pkg/policy/policycompiler"
	"github.com/waggle-net/waggle/pkg/tables/driftrepairs"
	"github.com/waggle-net/waggle/pkg/tables/namedcidrs"
	"github.com/waggle-net/waggle/pkg/tables/policyentries"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// slice is the approximate number of entries that one run compares. Smaller maps are compared completely in each run.
const slice = 2000

// verifier compares the maps with the rows of the written entries. Only its timer runs it. It marks rows with differences pending, and the controller writes
// their entries again. It removes unexpected entries and repairs identities and classes itself.
type verifier struct {
	*controller
	next    uint32 // policy id with which the next run continues
	entries cursor
	pace    drift.Pace
	keys    map[uint32]map[policycompiler.Key]bool // keys that the maps may have, of the policies that this run has checked
}

// differences are the results of one comparison. Rows that have changed since the snapshot of their comparison are not marked.
type differences struct {
	ofPolicies statedb.ReadTxn         // snapshot with which policies were compared
	policies   map[uint32]string       // differing entry of a policy, by policy id
	ofRanges   statedb.ReadTxn         // snapshot with which ranges were compared
	ranges     map[netip.Prefix]string // difference of an address range
	unowned    []entryKey              // entries that no policy has
	foreign    []netip.Prefix          // address ranges that no policy names; they are removed already
}

// paced is run at each interval. It omits intervals after a run that took much CPU time: the number of ranges and of classes is not limited.
func (v *verifier) paced(ctx context.Context) error {
	return v.pace.Do(func() error { return v.run(ctx) })
}

// run compares the next slice of entries, and all address ranges, identities and classes.
func (v *verifier) run(ctx context.Context) error {
	d, err := v.look(ctx)
	if err != nil {
		return fmt.Errorf("verify the maps of policies: %w", err)
	}
	if len(d.policies) > 0 {
		drift.Mark(v.Drift, v.Compiled, d.ofPolicies, func(row *policyentries.Policy) []driftrepairs.Finding {
			return drift.If(d.policies[row.ID] != "", driftrepairs.MapEntry, bpf.MapPolicy, d.policies[row.ID])
		})
	}
	if len(d.ranges) > 0 {
		drift.Mark(v.Drift, v.Named, d.ofRanges, func(row *namedcidrs.CIDR) []driftrepairs.Finding {
			return drift.If(d.ranges[row.Prefix] != "", driftrepairs.MapEntry, bpf.MapCIDRs, d.ranges[row.Prefix])
		})
	}
	for _, prefix := range d.foreign {
		v.Drift.Repairs.Record(driftrepairs.Finding{Kind: driftrepairs.MapEntry, What: bpf.MapCIDRs, Found: prefix.String() + " has no owner"})
	}
	drift.PruneUnowned(ctx, v.Drift, bpf.MapPolicy, d.unowned, func(k entryKey) bool { return v.isUnowned(ctx, k) },
		func() { v.prune(ctx, d.unowned) })
	return nil
}

// lock waits for the end of a round. A round may take long, and the watchdog monitors it separately, so the wait counts as idle.
func (v *verifier) lock(ctx context.Context) {
	watchdog.Idle(ctx)
	v.mu.Lock()
	watchdog.Busy(ctx)
}

// look compares the maps with the rows in several portions. It releases mu between two portions: with the identities of a large cluster all of them take tens of
// milliseconds, and a round, for which a new policy or an ADD waits, must not wait for all.
func (v *verifier) look(ctx context.Context) (d differences, err error) {
	if v.beforeFirst(ctx) {
		return d, nil // the maps have the entries of the previous run
	}
	d = differences{policies: map[uint32]string{}, ranges: map[netip.Prefix]string{}}
	if err := errors.Join(v.comparePolicies(ctx, &d), v.compareRanges(ctx, &d), v.repairIdentities(ctx), v.repairClasses(ctx)); err != nil {
		return d, err
	}
	return d, v.findUnowned(ctx, &d)
}

// beforeFirst reports whether no round has published rows yet.
func (v *verifier) beforeFirst(ctx context.Context) bool {
	v.lock(ctx)
	defer v.mu.Unlock()
	return v.first
}

// findUnowned finds entries without a policy among the next entries.
func (v *verifier) findUnowned(ctx context.Context, d *differences) error {
	v.lock(ctx)
	defer v.mu.Unlock()
	v.keys = map[uint32]map[policycompiler.Key]bool{}
	found, _, err := v.Entries.Some(&v.entries, slice)
	for k := range found {
		if !v.wanted(k) {
			d.unowned = append(d.unowned, k)
		}
	}
	return err
}

// comparePolicies compares the entries of the next policies.
func (v *verifier) comparePolicies(ctx context.Context, d *differences) error {
	v.lock(ctx)
	defer v.mu.Unlock()
	from, n := v.next, 0
	v.next, d.ofPolicies = 0, v.DB.ReadTxn()
	for row := range v.Compiled.LowerBound(d.ofPolicies, policyentries.ByID(from)) {
		if n > slice {
			v.next = row.ID
			break
		}
		if row.Status.Kind != reconciler.StatusKindDone {
			continue
		}
		for want := range row.Compiled.Entries() {
			n++
			have, found, err := v.Entries.Get(row.ID, want.Key)
			switch {
			case err != nil:
				return err
			case !found:
				d.policies[row.ID] = fmt.Sprintf("policy %d: %s is missing", row.ID, describe(want.Key))
			case have.Deny != want.Deny || have.Rule != want.Rule:
				d.policies[row.ID] = fmt.Sprintf("policy %d: %s has another value", row.ID, describe(want.Key))
			}
		}
	}
	return nil
}

// compareRanges compares the address ranges, and removes ranges that another program has added.
func (v *verifier) compareRanges(ctx context.Context, d *differences) error {
	v.lock(ctx)
	defer v.mu.Unlock()
	have, err := v.CIDRs.Dump()
	if err != nil {
		return err
	}
	d.ofRanges = v.DB.ReadTxn()
	for row := range v.Named.All(d.ofRanges) {
		switch number, found := have[row.Prefix]; {
		case !found:
			d.ranges[row.Prefix] = row.Prefix.String() + " is missing"
		case number != row.Identity:
			d.ranges[row.Prefix] = row.Prefix.String() + " has another value"
		}
	}
	for prefix, number := range have {
		if _, ours := v.cidrs.written[prefix]; !ours {
			v.cidrs.written[prefix] = number
			d.foreign = append(d.foreign, prefix)
		}
	}
	if len(d.foreign) == 0 {
		return nil
	}
	slices.SortFunc(d.foreign, func(a, b netip.Prefix) int { return a.Bits() - b.Bits() })
	v.requestRound() // a range may not be removed, or its number may be free for another range
	return v.cidrs.retire(d.foreign)
}

// requestRound makes the loop begin a round when mu is released. The caller must hold mu.
func (v *verifier) requestRound() {
	close(v.repaired)
	v.repaired = make(chan struct{})
}

// repairIdentities writes the differing words of the map known_identities again.
func (v *verifier) repairIdentities(ctx context.Context) (err error) {
	v.lock(ctx)
	defer v.mu.Unlock()
	have, err := v.Numbers.Dump()
	if err != nil {
		return err
	}
	want := slices.Clone(v.known.written)
	v.known.written = have
	for word := range want {
		if have[word] != want[word] {
			v.known.differ[uint32(word)] = true
			v.Drift.Repairs.Record(driftrepairs.Finding{Kind: driftrepairs.MapEntry, What: bpf.MapKnownIdentities,
				Found: fmt.Sprintf("identities from %d on have another value", word*64)})
		}
	}
	return v.known.announce()
}

// isUnowned reports whether the map has an entry that no policy has.
func (v *verifier) isUnowned(ctx context.Context, k entryKey) bool {
	v.lock(ctx)
	defer v.mu.Unlock()
	_, found, err := v.Entries.Get(k.ID, k.Key)
	delete(v.keys, k.ID) // the id may have another policy by now
	return err == nil && found && !v.wanted(k)
}

// wanted reports whether the maps may have an entry. The caller must hold mu.
func (v *verifier) wanted(k entryKey) bool {
	if _, stale := v.store.stale[k]; stale {
		return true // an entry of the previous run, whose policies endpoints may still have
	}
	if v.keys[k.ID] == nil {
		v.keys[k.ID] = v.keysOf(v.store.byID[k.ID])
	}
	return v.keys[k.ID][k.Key]
}

// keysOf returns the keys that the maps may have of a policy id.
func (v *verifier) keysOf(h *mapPolicy) map[policycompiler.Key]bool {
	keys := map[policycompiler.Key]bool{}
	if h == nil {
		return keys
	}
	for _, c := range []*policycompiler.Compiled{h.is, h.target} {
		if c != nil {
			for e := range c.Entries() {
				keys[e.Key] = true
			}
		}
	}
	for k := range h.extra {
		keys[k] = true
	}
	return keys
}

// prune removes entries that no policy has.
func (v *verifier) prune(ctx context.Context, unowned []entryKey) {
	v.lock(ctx)
	defer v.mu.Unlock()
	v.keys = map[uint32]map[policycompiler.Key]bool{}
	for _, k := range unowned {
		if !v.wanted(k) {
			if err := v.Entries.Delete(k.ID, k.Key); err != nil {
				v.Log.Warn("An entry of a policy map that has no owner cannot be removed", "policy", k.ID, "entry", describe(k.Key), "error", err)
			}
		}
	}
}

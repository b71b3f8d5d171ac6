package policymaps

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/policy/policycompiler"
	"github.com/waggle-net/waggle/pkg/tables/attachments"
	"github.com/waggle-net/waggle/pkg/tables/endpointpolicies"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// controller resolves policies in the one loop of the cell. The verify job uses the state of the maps as well, with mu held.
type controller struct {
	params
	in    *inputs
	store *store
	cidrs *cidrs
	known *knownIdentities
	// classes are the classes of identities in the kernel.
	classes *identityClasses
	// mu is held from the first write to the maps until the tables have the result, and by the verify job while it compares maps and tables.
	mu       sync.Mutex
	previous previousRun
	alive    func() // reports progress to the watchdog, after each step of a loop with a known number of steps

	// announced has the identities that every policy in use knows, so peers may have them.
	announced map[uint32]bool
	// announcedTo is the revision of the table identities up to which all identities are announced.
	announcedTo statedb.Revision
	marks       marks

	views *views
	last  lastRound

	complete bool   // endpoint-policies is initialized
	alone    bool   // no hook has a program of the previous run
	revision uint32 // revision of the enforced policies
	first    bool   // no round has published rows yet
	retry    time.Duration
	problems []error // errors of this round
	overflow overflow
	// waiting has the desired policies of this round with entries about address ranges that are not in the map yet.
	waiting map[*policycompiler.Compiled]bool
	// reevaluate means that flows may have been evaluated with wrong classes of their peers. Guarded by mu.
	reevaluate   bool
	reevaluating bool          // the round raises revisions because of reevaluate: see [controller.reevaluateFlows]
	repaired     chan struct{} // closes when a repair of the verify job needs a round. Guarded by mu.
}

// lastRound is what the last round has left: see [controller.wait].
type lastRound struct {
	steady  bool // it was complete and had no error, so the next one may evaluate only changed endpoints
	settled bool // it was steady and left nothing to write, to publish or to remove
	late    bool // some endpoint has no row
	// untaken are the endpoints whose rows the datapath had not applied.
	untaken []uint16
	// factsChanged closes when the datapath may have applied rows.
	factsChanged <-chan struct{}
}

func newController(p params) *controller {
	return &controller{params: p, alive: func() {}, store: newStore(p.Entries), cidrs: newCIDRs(p.CIDRs), known: newKnownIdentities(p.Numbers),
		classes: newIdentityClasses(p.Classes), announced: map[uint32]bool{}, repaired: make(chan struct{}),
		views: newViews(), revision: 1, first: true}
}

// run does not debounce changes: an ADD waits for the policy of its endpoint.
func (c *controller) run(ctx context.Context, health cell.Health) error {
	c.alive = func() { watchdog.Busy(ctx) }
	if err := c.restore(); err != nil {
		health.Degraded("the maps of policies cannot be read; their entries stay in force", err)
		return err
	}
	defer c.in.close()
	for {
		txn := watchdog.Snapshot(ctx, c.DB, c.Endpoints, c.Of, c.Identities, c.KubernetesPolicies, c.CiliumPolicies)
		changed := statedb.NewWatchSet()
		c.problems = nil
		began := time.Now()
		c.in.read(txn, changed, began)
		waiting := c.in.waiting(txn, changed, began)
		var again time.Duration
		if waiting == "" {
			again = c.pass(txn, changed)
		} else {
			again = c.in.expires(began)
			c.last.steady, c.last.settled = false, false
		}

		c.report(health, waiting)

		if !c.wait(ctx, changed, again) {
			return nil
		}
	}
}

// restore reads the maps and subscribes to the tables from which policies are compiled.
func (c *controller) restore() (err error) {
	slots, err := c.store.restore()
	if err := errors.Join(err, c.cidrs.restore(), c.known.restore(), c.classes.restore()); err != nil {
		return err
	}
	c.cidrs.skip(c.store.stale)
	if c.in, err = newInputs(c.params); err != nil {
		return fmt.Errorf("follow the tables that policies are made from: %w", err)
	}
	c.store.quota = c.Config.entryQuota(c.store.capacity)
	// A policy that only just exceeds the maps is compiled, so that the part of its change that denies can be written: see [store.reject].
	c.in.resolver.SetLimit(2*c.store.capacity.entries, 2*c.store.capacity.ranges)
	c.previous = newPreviousRun(slots, c.store, c.classes)
	c.in.previous = &c.previous
	c.in.alive, c.store.alive = c.alive, c.alive
	c.store.peers, c.classes.peers = c, c
	return nil
}

// pass runs one reconciliation round: it updates the maps and the tables to a snapshot, as far as currently possible. It returns the delay after which
// another round is necessary without a change; 0 for never.
func (c *controller) pass(txn statedb.ReadTxn, changed *statedb.WatchSet) time.Duration {
	began := time.Now()
	_, c.last.factsChanged = c.Facts.AllWatch(txn)
	c.watchInitialized(txn, changed)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.takeMarks(txn, changed)
	c.previous.settle(c.in.synced(txn, began))
	c.store.frozen = !c.previous.settled
	c.in.services.paced = c.previous.settled

	replaced := c.replaced(txn, changed)
	if replaced || c.previous.nested {
		c.cidrs.moved = c.cidrs.moved || !c.cidrs.nested // more ranges may fit
		c.cidrs.nested = true
	}
	if replaced && c.previous.settled || c.previous.nested { // until then, entries must be comparable with those of the previous run
		c.in.resolver.SetNested(true)
	}
	if replaced && c.previous.settled || c.previous.classes {
		c.startClasses()
	}
	if c.announcedTo == 0 {
		c.known.retain(c.in.known) // of the identities that the previous run announced
	}
	err := c.known.withdraw()
	if err == nil {
		err = c.writeClasses()
	}
	c.reevaluateFlows()
	want := c.compile(txn)
	want.replaced = replaced
	if err != nil {
		c.note(err) // entries about deleted identities stay
	} else {
		c.enforce(txn, want)
	}
	if !want.idle {
		c.findOverflow()
	}
	c.show(want)
	c.last.steady = c.complete && c.previous.settled && len(c.problems) == 0
	c.last.settled = c.last.steady && (want.idle || want.done)
	c.last.late = want.late

	changed.Add(c.last.factsChanged, c.repaired)
	return c.again(want, began)
}

// watchInitialized adds the channels of the tables that are not complete yet. A table may become complete without a change of its rows. A restored endpoint
// without facts waits for the table of facts, and so do the entries of the previous run; endpoint-policies is complete after the other two.
func (c *controller) watchInitialized(txn statedb.ReadTxn, changed *statedb.WatchSet) {
	for _, table := range []statedb.TableMeta{c.Facts, c.Endpoints, c.Of} {
		if done, initialized := table.Initialized(txn); !done {
			changed.Add(initialized)
		}
	}
}

// enforce writes entries and publishes the policies whose entries are in the maps.
func (c *controller) enforce(txn statedb.ReadTxn, want *wanted) {
	if want.idle {
		c.publish(txn, want)
		return
	}
	c.classes.used = nil
	c.store.assign(maps.Keys(c.views.compiled), c.views.successors)
	c.store.write()
	for _, h := range c.store.byID {
		if h.err != nil {
			c.note(c.incomplete(h))
		}
	}
	c.waiting = nil
	if want.unwritten = !c.writeCIDRs(); want.unwritten {
		c.waiting = c.waitingForRanges()
	}
	c.publish(txn, want)
	want.done = c.cleanUp(want)
}

// sooner returns the shorter of two delays; a delay of 0 means never.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b > 0 && b < a {
		return b
	}
	return a
}

// again removes deleted identities that are no longer in use. It returns the delay after which another round is necessary without a change; 0 for never. A
// round that waits for another cell needs no delay: the channels in the watch set of the round close when the other cell has acted. began is the time at
// which the round has called [inputs.synced].
func (c *controller) again(w *wanted, began time.Time) time.Duration {
	forgotten, again := c.in.forget(func(id uint32) bool { return c.views.identities[id] > 0 }, time.Now())
	for _, id := range forgotten {
		delete(c.announced, id) // an identity that is created again is new
		c.known.remove(id)
	}
	again = sooner(again, c.in.settleAgain(time.Now()))
	if len(c.problems) > 0 {
		c.retry = min(max(2*c.retry, minRetry), maxRetry)
		again = sooner(again, c.retry)
	} else {
		c.retry = 0
	}
	again = sooner(again, c.in.copied.left(began))
	// The next round removes the forgotten identities and unused classes from the maps. If the datapath need not change anything for the new rows, it reports
	// nothing.
	if w.again || len(forgotten) > 0 || len(c.problems) == 0 && c.leavesClasses() || w.rewritten && !c.pending(c.DB.ReadTxn()) {
		return time.Nanosecond
	}
	if left, necessary := c.in.services.due(time.Now()); necessary {
		again = sooner(again, max(left, time.Nanosecond))
	}
	return again
}

// decisions are the compiled policies of an endpoint: enforced and audited ingress, enforced and audited egress.
type decisions [4]*policycompiler.Compiled

// wanted is the result of one round.
type wanted struct {
	ids      []uint16                   // endpoints to publish, sorted
	idle     bool                       // no endpoint of this node is affected, and the last round left no work: at most identities are announced
	done     bool                       // nothing is left to be removed
	replaced bool                       // every hook has a program of this run
	kept     []*policycompiler.Compiled // desired policies of endpoints that keep a policy of the previous run
	flips    bool                       // some endpoint changes to another policy id
	written  bool                       // this round wrote rows that the datapath must apply
	// rewritten means that one of these rows belongs to an endpoint that had a row or that gets no facts, or to an id that has facts already. The datapath may
	// have nothing to apply for it.
	rewritten bool
	late      bool // some endpoint has no row yet
	again     bool // another round can continue at once
	unwritten bool // the map cidrs lacks a named range, or its epoch is not raised: no identity is announced, and nothing is removed
}

// compile numbers the named address ranges and compiles the policies of the endpoints that this round evaluates.
func (c *controller) compile(txn statedb.ReadTxn) *wanted {
	named := c.in.resolver.NamedCIDRs()
	renumbered, err := c.cidrs.name(named, c.in.resolver.Namings(), c.beyondQuota())
	c.note(err)
	if renumbered {
		c.in.resolver.SetCIDRs(c.cidrs.numbers)
	}
	w := &wanted{ids: c.look(txn)}
	w.idle = c.last.settled && len(w.ids) == 0 && !c.cidrs.moved
	c.last.untaken = slices.Sorted(maps.Keys(c.views.untaken))
	return w
}

// replaced reports whether no program of the previous run is left. If one may be left, it adds the attachments to changed. If the slots of endpoints had to
// be created again, such a program still uses the former slots and the policy ids in them. It is not enough that all existing rows are done, because the rows
// of the pods' hooks are added after the others.
func (c *controller) replaced(txn statedb.ReadTxn, changed *statedb.WatchSet) bool {
	if c.alone {
		return true
	}
	_, more := c.Attachments.AllWatch(txn)
	if c.alone = attachments.Replaced(txn, c.Attachments); !c.alone {
		changed.Add(more)
	}
	return c.alone
}

// idsOf lists the policy ids of a row, in the order of [decisions].
func idsOf(row *endpointpolicies.EndpointPolicy) [4]uint32 {
	return [4]uint32{row.Ingress.Enforced.ID, row.Ingress.Audited.ID, row.Egress.Enforced.ID, row.Egress.Audited.ID}
}

// writeCIDRs writes new address ranges to their map when all policies in use have entries about them. It reports whether the map has the desired content.
func (c *controller) writeCIDRs() bool {
	if !c.cidrs.moved {
		return true
	}
	missing := c.cidrs.missing()
	for _, h := range c.store.byID {
		if h.err != nil && h.open && len(missing) > 0 && h.users > 0 {
			c.note(fmt.Errorf("address ranges wait for policy %d", h.id))
			return false
		}
	}
	for _, p := range missing {
		if err := c.store.inheritRange(c.cidrs.parent(p), c.cidrs.numbers[p]); err != nil {
			c.note(err)
			return false
		}
		c.alive()
	}
	err := c.cidrs.write(missing)
	c.cidrs.err = err
	c.note(err)
	return err == nil
}

// cleanUp removes unused entries. It removes none while the slot of an endpoint may still name them, which includes slots in a map that only programs of the
// previous run read. It reports whether nothing is left to be removed.
func (c *controller) cleanUp(w *wanted) (done bool) {
	if w.unwritten || c.first || len(c.views.untaken)+len(c.views.restored) > 0 || w.flips || w.written || !w.replaced {
		return false
	}
	done = true
	outdated := c.store.previousID(c.views.successors) != 0
	for _, h := range c.store.byID {
		switch {
		case h.users > 0:
			outdated = outdated || !c.store.current[h.is]
		case h.target != nil && c.store.current[h.target]: // the desired policy of some endpoint
			done = false
		default:
			c.note(c.store.free(h))
		}
	}
	if c.cidrs.moved {
		if retired := c.removable(c.cidrs.retired()); len(retired) > 0 {
			err := c.cidrs.retire(retired)
			c.note(err)
			w.again = w.again || err == nil // without these ranges, entries can be removed
		}
	}
	if len(c.store.stale) == 0 {
		return done && !outdated
	}
	if initialized, _ := c.Facts.Initialized(c.DB.ReadTxn()); initialized {
		c.note(c.store.sweep(c.views.successors))
	}
	return false
}

func (c *controller) note(err error) {
	if err != nil {
		c.problems = append(c.problems, err)
	}
}

// wait returns true when an input changes or after the delay again, and false when the agent stops. Changes on which no round could act do not end the wait:
// on a node with many endpoints, a round costs more than all other work of an ADD.
func (c *controller) wait(ctx context.Context, changed *statedb.WatchSet, again time.Duration) bool {
	limited, cancel := ctx, context.CancelFunc(func() {})
	if again > 0 {
		limited, cancel = context.WithTimeout(ctx, again)
		watchdog.IdleFor(ctx, again) // the next round begins with a snapshot
	} else {
		watchdog.Idle(ctx) // the next round begins with a snapshot
	}
	defer func() { cancel() }()
	_, timed := c.in.services.due(time.Now()) // the limit covers Services that require a pass already
	for {
		closed, err := changed.Wait(limited, 0)
		switch {
		case err != nil: // limited has expired, or ctx is done
			return ctx.Err() == nil
		case closed[0] == c.last.factsChanged && c.futile(again):
			changed.Add(c.last.factsChanged)
		case c.passOverOwnRows(closed[0], changed):
		case !c.in.passOver(closed[0], changed):
			return ctx.Err() == nil
		}
		if left, necessary := c.in.services.due(time.Now()); necessary && !timed { // Services have changed since the last round
			outer := cancel
			var inner context.CancelFunc
			limited, inner = context.WithTimeout(limited, left)
			cancel, timed = func() { inner(); outer() }, true
		}
	}
}

// futile reports whether a round would change nothing although endpoint facts have changed: a row that the last round waited for is still pending, or no row
// was pending, each endpoint has a row, and no retry is scheduled.
func (c *controller) futile(again time.Duration) bool {
	if len(c.in.peers.unsettled) > 0 || len(c.store.stale) > 0 {
		return false
	}
	txn := c.DB.ReadTxn()
	_, c.last.factsChanged = c.Facts.AllWatch(txn)
	if len(c.last.untaken) == 0 {
		return again == 0 && !c.last.late
	}
	return c.pending(txn)
}

// pending reports whether the datapath has not yet applied a row that the last round has written or waited for. It will change the facts then.
func (c *controller) pending(txn statedb.ReadTxn) bool {
	for _, id := range c.last.untaken {
		row, _, found := c.Published.Get(txn, endpointpolicies.ByEndpoint(id))
		if ep := c.in.subjects[id]; found && ep != nil && !c.taken(txn, ep, row) {
			return true
		}
	}
	return false
}

// maxProblems is the number of problems that the module's health names at most.
const maxProblems = 3

func (c *controller) report(health cell.Health, waiting string) {
	if waiting != "" {
		health.OK("waiting for " + waiting)
		return
	}
	if len(c.problems) > 0 {
		health.Degraded("policies are not fully enforced; the enforced ones stay",
			errors.Join(c.problems[:min(len(c.problems), maxProblems)]...))
		return
	}
	health.OK(fmt.Sprintf("%d policies for %d endpoints, compiled into %d", len(c.in.policies), len(c.in.subjects), len(c.store.byID)))
}

// sortedPrefixes returns the keys of a map, sorted.
func sortedPrefixes[V any](m map[netip.Prefix]V) []netip.Prefix {
	list := make([]netip.Prefix, 0, len(m))
	for p := range m {
		list = append(list, p)
	}
	slices.SortFunc(list, netip.Prefix.Compare)
	return list
}

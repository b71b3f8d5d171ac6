package policy

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

	"github.com/waggle-net/waggle/pkg/endpointfeed"
	"github.com/waggle-net/waggle/pkg/heartbeat"
	"github.com/waggle-net/waggle/pkg/policymap"
	"github.com/waggle-net/waggle/pkg/tables/attachments"
	"github.com/waggle-net/waggle/pkg/tables/endpointpolicies"
)

// controller is the one loop of the cell. All that it holds is its own.
type controller struct {
	params
	in    *inputs
	store *store
	cidrs *cidrs
	known *knownIdentities
	// classes are those of identities in the kernel.
	classes *identityClasses
	// mu is held from the first write to the maps until the tables say so, and by the verify job while it compares the two.
	mu      sync.Mutex
	earlier earlier
	alive   func() // says that a pass goes on: after each piece of work of which there is a known number

	// announced are the identities that every policy in use knows: somebody may be known by them.
	announced map[uint32]bool
	// announcedTo is the revision of the table identities up to which all are.
	announcedTo statedb.Revision
	// marks and rangeMarks are the rows that the verify job had marked when this pass began, by their revisions.
	marks, rangeMarks map[statedb.Revision]bool
	// marksTo and rangeMarksTo are the revisions of the tables up to which rows were looked at for marks.
	marksTo, rangeMarksTo statedb.Revision

	views     *views
	steady    bool      // the last round was complete and met no error, so the next one may look at changed endpoints alone
	settled   bool      // and left nothing to write, to publish or to remove
	lastWhole time.Time // when a round has looked at everything

	complete bool   // endpoint-policies is initialized
	alone    bool   // no hook has a program of the run before
	revision uint32 // of what is enforced
	first    bool   // nothing has been published yet
	retry    time.Duration
	problems []error // of this pass
	overflow overflow
	// untaken are the endpoints whose rows the datapath has not taken over, as far as the last pass knows.
	untaken []uint16
	// factsChanged closes when the datapath may have taken over something.
	factsChanged <-chan struct{}
	// reevaluate: flows may have been evaluated with wrong classes of their peers. Guarded by mu.
	reevaluate   bool
	reevaluating bool          // the round raises revisions for that reason: see [controller.reevaluateFlows]
	repaired     chan struct{} // closes when the verify job has repaired classes. Guarded by mu.
}

func newController(p params) *controller {
	return &controller{params: p, alive: func() {}, store: newStore(p.Entries), cidrs: newCIDRs(p.CIDRs), known: newKnownIdentities(p.Numbers),
		classes: newIdentityClasses(p.Classes), announced: map[uint32]bool{}, repaired: make(chan struct{}),
		views: newViews(), revision: 1, first: true}
}

// run has no settle time: an ADD waits for the policy of its endpoint.
func (c *controller) run(ctx context.Context, health cell.Health) error {
	c.alive = func() { heartbeat.Busy(ctx) }
	if err := c.restore(); err != nil {
		health.Degraded("the maps of policies cannot be read; what they enforce stays", err)
		return err
	}
	defer c.in.close()
	for {
		txn := heartbeat.Snapshot(ctx, c.DB, c.Endpoints, c.Of, c.Identities, c.KubernetesPolicies, c.CiliumPolicies)
		changed := statedb.NewWatchSet()
		c.problems = nil
		began := time.Now()
		c.in.read(txn, changed, began)
		waiting := c.in.waiting(txn, changed, began)
		again := lookAgain
		if waiting == "" {
			again = c.pass(txn, changed)
		} else {
			c.steady, c.settled = false, false
		}

		c.report(health, waiting)

		if !c.wait(ctx, changed, again) {
			return nil
		}
	}
}

// restore reads the maps and subscribes to all that policies are made from.
func (c *controller) restore() (err error) {
	if err := errors.Join(c.store.restore(), c.cidrs.restore(), c.known.restore(), c.classes.restore()); err != nil {
		return err
	}
	if c.in, err = newInputs(c.params); err != nil {
		return fmt.Errorf("follow the tables that policies are made from: %w", err)
	}
	c.earlier = newEarlier(c.store, c.classes)
	c.in.peers.slots = c.store.slots
	c.in.alive, c.store.alive = c.alive, c.alive
	c.store.announced, c.store.identities, c.store.ranges = c.announced, c.in.known, c.cidrs.known
	c.store.classes = c.classes
	c.classes.announced, c.classes.leaving, c.classes.known = c.announced, c.in.leaving, c.known
	return nil
}

// pass brings the maps and the tables up to a snapshot, as far as that is possible now. It says when another is due although
// nothing has changed; 0 for never.
func (c *controller) pass(txn statedb.ReadTxn, changed *statedb.WatchSet) time.Duration {
	_, c.factsChanged = c.Facts.AllWatch(txn)
	_, marked := c.Compiled.AllWatch(txn) // by the verify job
	_, markedCIDRs := c.Named.AllWatch(txn)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.takeMarks(txn)
	c.earlier.settle(c.in.synced(txn, time.Now()))
	c.store.frozen = !c.earlier.settled

	replaced := c.replaced(txn, changed)
	if replaced || c.earlier.nested {
		c.cidrs.moved = c.cidrs.moved || !c.cidrs.nested // more ranges may fit
		c.cidrs.nested = true
		c.in.resolver.SetNested(true)
	}
	if replaced && c.earlier.settled || c.earlier.classes {
		c.startClasses()
	}
	if c.announcedTo == 0 {
		c.known.retain(c.in.known) // of those that the previous run has announced
	}
	err := c.known.withdraw()
	if err == nil {
		err = c.writeClasses()
	}
	c.reevaluateFlows()
	want := c.compile(txn)
	want.replaced = replaced
	if err != nil {
		c.note(err) // entries about identities that are gone stay
	} else {
		c.enforce(txn, want)
	}
	if !want.idle {
		c.findOverflow()
	}
	c.show(want)
	c.steady = c.complete && c.earlier.settled && len(c.problems) == 0
	c.settled = c.steady && (want.idle || want.done)

	changed.Add(c.factsChanged, marked, markedCIDRs, c.repaired)
	return c.again(want)
}

// enforce writes entries and publishes what stands in the maps.
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
			c.note(c.refusal(h))
		}
	}
	named := c.writeCIDRs()
	if named {
		c.publish(txn, want)
	}
	want.done = c.cleanUp(want, named)
}

// lookAgain is when what is published should have been taken over, at the latest, and how long nobody is left waiting unseen.
const lookAgain = time.Second

// again says after which time another pass is due although nothing has changed; 0 for never.
func (c *controller) again(w *wanted) time.Duration {
	forgotten, again := c.in.forget(func(id uint32) bool { return c.views.identities[id] > 0 }, time.Now())
	for _, id := range forgotten {
		delete(c.announced, id) // if it comes back it is new
		c.known.remove(id)
	}
	earliest := func(d time.Duration) {
		if again == 0 || d < again {
			again = d
		}
	}
	if settle := c.in.settleAgain(time.Now()); settle > 0 {
		earliest(settle)
	}
	if len(c.problems) > 0 {
		c.retry = min(max(2*c.retry, minRetry), maxRetry)
		earliest(c.retry)
	} else {
		c.retry = 0
	}
	if w.wrote || w.late || c.in.copied.lasts() {
		earliest(lookAgain)
	}
	if w.again || len(forgotten) > 0 { // the next round removes the latter from the maps
		earliest(time.Nanosecond)
	}
	return again
}

// decisions are what holds for the two directions of an endpoint: ingress, its audit, egress, its audit.
type decisions [4]*policymap.Compiled

// wanted is what one pass has computed.
type wanted struct {
	ids      []uint16              // endpoints to publish, sorted
	idle     bool                  // nothing concerns endpoints of this node, and the last round has left nothing to do: at most identities are announced
	done     bool                  // nothing is left to be removed
	replaced bool                  // every hook has a program of this run
	kept     []*policymap.Compiled // what endpoints shall have that go on with a policy of the run before
	flips    bool                  // some endpoint goes over to another policy id
	wrote    bool                  // rows that the datapath has to take over yet
	late     bool                  // some endpoint has no row yet
	again    bool                  // another pass can go on at once
}

// compile says what each endpoint shall have.
func (c *controller) compile(txn statedb.ReadTxn) *wanted {
	c.invalidate()
	named := c.in.resolver.NamedCIDRs()
	renumbered, err := c.cidrs.name(named, c.in.resolver.Namings(), c.beyondQuota())
	c.note(err)
	if renumbered {
		c.in.resolver.SetCIDRs(c.cidrs.numbers)
	}
	w := &wanted{ids: c.look(txn)}
	w.idle = c.settled && len(w.ids) == 0 && !c.cidrs.moved
	c.untaken = slices.Sorted(maps.Keys(c.views.untaken))
	return w
}

// replaced tells whether no program of the run before is left, and watches what is missing. Where the slots of endpoints had
// to be made anew, such a program goes on with those that were there, and with the policy ids that they name. That all rows are done
// does not tell it: those of the pods' hooks come after the others.
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

// writeCIDRs puts new address ranges into their map, when all policies know what they mean. It says whether the map is what
// it should be.
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
		if err := c.store.bequeath(c.cidrs.parent(p), c.cidrs.numbers[p]); err != nil {
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

// cleanUp removes what nobody can have any more: nothing while an endpoint's slot may still name it, also one in a map that
// only the programs of the run before read. It reports whether nothing is left to be removed.
func (c *controller) cleanUp(w *wanted, named bool) (done bool) {
	if !named || c.first || len(c.views.untaken)+len(c.views.restored) > 0 || w.flips || w.wrote || !w.replaced {
		return false
	}
	done = true
	stuck := c.store.former(c.views.successors) != 0
	for _, h := range c.store.byID {
		switch {
		case h.users > 0:
			stuck = stuck || !c.store.current[h.is]
		case h.target != nil && c.store.current[h.target]: // an endpoint is about to get it
			done = false
		default:
			c.note(c.store.free(h))
		}
	}
	if c.cidrs.moved && !stuck {
		if retired := c.cidrs.retired(); len(retired) > 0 {
			c.note(c.cidrs.retire(retired))
			w.again = true // without them, entries can go
		}
	}
	if len(c.store.stale) == 0 {
		return done && !stuck
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

// wait returns when an input changes, or another pass is due; false when the agent stops. It goes on waiting while there are only
// changes that no pass could do anything about: on a node with many endpoints a pass costs more than all else that an ADD needs.
func (c *controller) wait(ctx context.Context, changed *statedb.WatchSet, again time.Duration) bool {
	limited, cancel := ctx, context.CancelFunc(func() {})
	pause := again
	if whole := time.Until(c.lastWhole.Add(endpointfeed.FullPassInterval)); c.steady && (again == 0 || whole < again) {
		pause = max(whole, time.Nanosecond)
	}
	if pause > 0 {
		limited, cancel = context.WithTimeout(ctx, pause)
		heartbeat.IdleFor(ctx, pause) // the next pass begins with a snapshot
	} else {
		heartbeat.Idle(ctx) // the same
	}
	defer cancel()
	for {
		closed, err := changed.Wait(limited, 0)
		switch {
		case err != nil: // the end of the time or of ctx
			return ctx.Err() == nil
		case closed[0] == c.factsChanged && c.futile(again):
			changed.Add(c.factsChanged)
		case !c.in.passOver(closed[0], changed):
			return ctx.Err() == nil
		}
	}
}

// futile reports whether a round would change nothing although endpoint facts have changed: a row that the last round waited for is still pending, or
// there was none and no retry is due.
func (c *controller) futile(again time.Duration) bool {
	if len(c.in.peers.unsettled) > 0 || len(c.store.stale) > 0 {
		return false
	}
	txn := c.DB.ReadTxn()
	_, c.factsChanged = c.Facts.AllWatch(txn)
	if len(c.untaken) == 0 {
		return again == 0
	}
	for _, id := range c.untaken {
		row, _, found := c.Published.Get(txn, endpointpolicies.ByEndpoint(id))
		if ep := c.in.subjects[id]; found && ep != nil && !c.taken(txn, ep, row) {
			return true
		}
	}
	return false
}

// maxProblems is how many problems the module's health names.
const maxProblems = 3

func (c *controller) report(health cell.Health, waiting string) {
	if waiting != "" {
		health.OK("waiting for " + waiting)
		return
	}
	if len(c.problems) > 0 {
		health.Degraded("policies are not enforced as they should be; what is enforced stays",
			errors.Join(c.problems[:min(len(c.problems), maxProblems)]...))
		return
	}
	health.OK(fmt.Sprintf("%d policies for %d endpoints, compiled into %d", len(c.in.policies), len(c.in.subjects), len(c.store.byID)))
}

// sortedPrefixes lists the keys of a map.
func sortedPrefixes[V any](m map[netip.Prefix]V) []netip.Prefix {
	list := make([]netip.Prefix, 0, len(m))
	for p := range m {
		list = append(list, p)
	}
	slices.SortFunc(list, comparePrefixes)
	return list
}

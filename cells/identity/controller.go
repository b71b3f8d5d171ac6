package identity

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/changes"
	"github.com/waggle-net/waggle/pkg/endpointfeed"
	"github.com/waggle-net/waggle/pkg/heartbeat"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/identities"
)

// maxProblems bounds how many label sets a health report names.
const maxProblems = 3

type controller struct {
	params
	numbers  *numbers
	backend  backend
	memo     map[uint16]memo      // labels of endpoints, filtered
	sets     map[string]members   // by key of the labels
	outcomes map[string]outcome   // of the sets that have a number, as they were committed last
	since    map[string]time.Time // when labels without a number were first seen
	local    map[uint32]bool      // rows of identities that are of this node's making
	complete bool                 // both tables are initialized
	whole    time.Time            // when all endpoints were looked at last; zero for never since the subscription
	mirror   *changes.Feed[*cilium.Identity]
	rows     *changes.Feed[*endpoints.Endpoint]
}

// outcome is what the endpoints of a set of labels have.
type outcome struct {
	id     uint32
	source identities.Source
	why    string
}

// members are the endpoints with one set of labels; true for those whose labels are all known.
type members map[uint16]bool

// partial reports whether no endpoint is known to have these labels and no others.
func (m members) partial() bool {
	for _, known := range m {
		if known {
			return false
		}
	}
	return true
}

// memo spares endpoints that have not changed the filter, and the look at their row: an ADD would pay for all others.
type memo struct {
	ep       *endpoints.Endpoint
	relevant map[string]string
	key      string // of relevant

	row    *identities.EndpointIdentity // as it was written last; nil when it was not
	rowKey string                       // the key of its labels
}

func newController(p params) *controller {
	n := newNumbers(p.Settings)
	return &controller{params: p, numbers: n, backend: newBackend(p, n), memo: map[uint16]memo{}, sets: map[string]members{},
		outcomes: map[string]outcome{}, since: map[string]time.Time{}, local: map[uint32]bool{}}
}

// run has no settle time: an ADD waits for the number of its endpoint.
func (c *controller) run(ctx context.Context, health cell.Health) error {
	if err := c.numbers.load(c.Log); err != nil {
		health.Degraded("numbers of the run before cannot be read", err)
		return err
	}
	if err := c.subscribe(); err != nil {
		return err
	}
	defer c.mirror.Close()
	defer c.rows.Close()
	for {
		txn := heartbeat.Snapshot(ctx, c.DB, c.Endpoints, c.CRDs, c.Wanted)
		in := c.read(txn)

		out := c.resolve(txn, in, time.Now())

		if err := c.numbers.save(); err != nil {
			out.problems = append(out.problems, err)
			out.lookAgain(time.Now().Add(saveAgain))
		}
		if err := c.commit(txn, in, out); err != nil {
			health.Degraded("identities are out of date", err)
			return err
		}

		c.report(health, in, out)
		if c.complete {
			out.lookAgain(c.whole.Add(endpointfeed.FullPassInterval))
		}

		wait, cancel := ctx, context.CancelFunc(func() {})
		if !out.again.IsZero() {
			wait, cancel = context.WithDeadline(ctx, out.again)
		}
		heartbeat.Idle(ctx)
		_, _ = in.changed.Wait(wait, 0) // an error is the deadline's or the agent's end
		cancel()
		if ctx.Err() != nil {
			return nil
		}
	}
}

func (c *controller) subscribe() (err error) {
	txn := c.DB.WriteTxn(c.CRDs, c.Endpoints)
	defer txn.Commit()
	c.whole = time.Time{}
	if c.mirror, err = changes.Follow(txn, c.CRDs); err != nil {
		return err
	}
	if c.rows, err = changes.Follow(txn, c.Endpoints); err != nil {
		c.mirror.Close()
	}
	return err
}

// set is one set of labels that endpoints have.
type set struct {
	labels  map[string]string
	partial bool // no endpoint is known to have these labels and no others

	since time.Time // when it was first seen without a number; set for the backend
}

// input is what one pass is made from.
type input struct {
	marked   endpointfeed.Marks // endpoints to look at
	whole    bool               // those are all that there are
	sets     map[string]set
	objects  []statedb.Change[*cilium.Identity] // what has changed in cilium-identities
	gone     map[uint32]bool                    // numbers of objects that were deleted
	restored bool                               // all endpoints of an earlier run are there
	synced   bool                               // all CiliumIdentity objects are
	changed  *statedb.WatchSet
	culprits *string // labels that make so many sets; empty until somebody asks
}

func (c *controller) read(txn statedb.ReadTxn) input {
	in := input{sets: map[string]set{}, gone: map[uint32]bool{}, changed: statedb.NewWatchSet(), culprits: new(string)}
	restored, restoring := c.Endpoints.Initialized(txn)
	synced, syncing := c.CRDs.Initialized(txn)
	_, wantedChanged := c.Wanted.AllWatch(txn)
	in.changed.Add(wantedChanged)
	if in.restored = restored; !restored {
		in.changed.Add(restoring)
	}
	if in.synced = synced; !synced {
		in.changed.Add(syncing)
	}
	_, serversChanged := c.Servers.AllWatch(txn)
	in.changed.Add(serversChanged)
	in.objects = c.mirror.UpTo(txn, in.changed)
	for _, change := range in.objects {
		in.gone[change.Object.ID] = change.Deleted
	}
	c.follow(txn, &in)
	for key, of := range c.sets {
		for id := range of { // any of them
			in.sets[key] = set{labels: c.memo[id].relevant, partial: of.partial()}
			break
		}
	}
	return in
}

// follow takes in the endpoints that have changed; all of them at the start, until both tables are initialized, and once a minute.
func (c *controller) follow(txn statedb.ReadTxn, in *input) {
	in.marked = endpointfeed.Marks{}
	endpointfeed.Mark(in.marked, c.rows.UpTo(txn, in.changed), func(ep *endpoints.Endpoint) uint16 { return ep.ID })
	if in.whole = !c.complete || time.Since(c.whole) >= endpointfeed.FullPassInterval; in.whole {
		c.whole = time.Now()
		clear(c.outcomes)
		for id := range c.memo {
			in.marked[id] = true
		}
		for ep := range c.Endpoints.All(txn) {
			in.marked[ep.ID] = true
		}
	}
	for id := range in.marked {
		if was, found := c.memo[id]; found {
			if delete(c.sets[was.key], id); len(c.sets[was.key]) == 0 {
				delete(c.sets, was.key)
			}
		}
		ep, _, found := c.Endpoints.Get(txn, endpoints.ByID(id))
		if !found {
			delete(c.memo, id)
			continue
		}
		m := c.remembered(ep)
		if c.memo[id] = m; c.sets[m.key] == nil {
			c.sets[m.key] = members{}
		}
		c.sets[m.key][id] = ep.LabelsMissing == ""
	}
}

func (c *controller) remembered(ep *endpoints.Endpoint) memo {
	if m, found := c.memo[ep.ID]; found && (m.ep == ep || maps.Equal(m.ep.Labels, ep.Labels)) {
		m.ep = ep
		return m
	}
	relevant := c.Filter.Relevant(ep.Labels)
	return memo{ep: ep, relevant: relevant, key: cilium.LabelsKey(relevant)}
}

// output is what the tables should say.
type output struct {
	byKey    map[string]number  // of each set of labels that has one
	why      map[string]string  // what keeps a set from a number of the cluster for long
	want     map[string]*wanted // label sets that need an object
	problems []error
	again    time.Time // when another pass is due although nothing changes; zero for never
}

// saveAgain is how long a disk that refused a number is left alone.
const saveAgain = time.Second

// lookAgain has a pass made at a time, unless one is due before; the zero time asks for none.
func (o *output) lookAgain(at time.Time) {
	if !at.IsZero() && (o.again.IsZero() || at.Before(o.again)) {
		o.again = at
	}
}

// resolve finds the number of each set of labels.
func (c *controller) resolve(txn statedb.ReadTxn, in input, now time.Time) output {
	out := output{byKey: map[string]number{}, why: map[string]string{}, want: map[string]*wanted{}}
	if in.restored {
		c.numbers.retain(func(key string) bool { _, used := in.sets[key]; return used })
	}
	maps.DeleteFunc(c.since, func(key string, _ time.Time) bool { _, used := in.sets[key]; return !used })
	for _, key := range slices.Sorted(maps.Keys(in.sets)) { // so that equal inputs give equal numbers
		s := in.sets[key]
		if s.since = c.since[key]; s.since.IsZero() {
			s.since = now
		}
		choice := c.choose(txn, in, key, s, now)
		out.problems = append(out.problems, choice.problem)
		if choice.want != nil {
			out.want[key] = choice.want
		}
		out.lookAgain(choice.again)
		if choice.number.ID == 0 {
			c.since[key] = s.since
			continue
		}
		out.byKey[key] = choice.number
		if choice.why != "" {
			out.why[key] = choice.why
		}
		delete(c.since, key)
		had := c.numbers.byKey[key]
		if choice.number.Source != identities.Reserved && (had.ID != choice.number.ID || had.Source != choice.number.Source) {
			c.numbers.set(choice.number)
		}
	}
	// Two label sets never have one number: whoever lost it in numbers.set gets another in the next pass.
	for key, n := range out.byKey {
		if n.Source != identities.Reserved && c.numbers.byKey[key].ID != n.ID {
			delete(out.byKey, key)
			out.again = now
		}
	}
	return out
}

func (c *controller) report(health cell.Health, in input, out output) {
	problems := slices.DeleteFunc(out.problems, func(err error) bool { return err == nil })
	if len(problems) > 0 {
		slices.SortFunc(problems, func(a, b error) int { return len(a.Error()) - len(b.Error()) })
		health.Degraded(fmt.Sprintf("%d of %d label sets have no identity of the cluster", len(problems), len(in.sets)),
			errors.Join(problems[:min(len(problems), maxProblems)]...))
		return
	}
	health.OK(fmt.Sprintf("%d endpoints with %d label sets", len(c.memo), len(in.sets)))
}

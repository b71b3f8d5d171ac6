package identityallocator

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/changefeed"
	"github.com/waggle-net/waggle/pkg/endpointfeed"
	"github.com/waggle-net/waggle/pkg/loop"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/identities"
)

// maxProblems limits the label sets that a health report names.
const maxProblems = 3

type controller struct {
	params
	numbers  *numbers
	backend  backend
	memo     map[uint16]memo      // filtered labels of endpoints, by local id
	sets     map[string]members   // by key of the labels
	outcomes map[string]outcome   // of the label sets with a number, as last committed
	since    map[string]time.Time // time at which labels without a number were first seen
	failing  time.Time            // time of the first of the last failed attempts to write files of numbers; zero after a success
	local    map[uint32]bool      // identities that only this node has
	complete bool                 // both tables are initialized
	whole    time.Time            // time at which all endpoints were last marked; zero for never since the subscription
	mirror   *changefeed.Feed[*cilium.Identity]
	rows     *changefeed.Feed[*endpoints.Endpoint]
}

// outcome is the identity of the endpoints of one label set.
type outcome struct {
	id     uint32
	source identities.Source
	why    string
}

// members are the endpoints of one label set; the value reports whether all labels of the endpoint are known.
type members map[uint16]bool

// partial reports whether no endpoint is known to have exactly these labels.
func (m members) partial() bool {
	for _, known := range m {
		if known {
			return false
		}
	}
	return true
}

// memo caches the filtered labels and the row of an unchanged endpoint, so that an ADD does not process all other endpoints.
type memo struct {
	ep       *endpoints.Endpoint
	relevant map[string]string
	key      string // key of relevant

	row    *identities.EndpointIdentity // last written row; nil without one
	rowKey string                       // label key of row
}

func newController(p params) *controller {
	n := newNumbers(p.Settings)
	return &controller{params: p, numbers: n, backend: newBackend(p, n), memo: map[uint16]memo{}, sets: map[string]members{},
		outcomes: map[string]outcome{}, since: map[string]time.Time{}, local: map[uint32]bool{}}
}

// run has no debounce interval: an ADD waits for the number of its endpoint.
func (c *controller) run(ctx context.Context, health cell.Health) error {
	if err := c.numbers.load(c.Log); err != nil {
		health.Degraded("identities of the previous run cannot be read", err)
		return err
	}
	if err := c.subscribe(); err != nil {
		return err
	}
	defer c.mirror.Close()
	defer c.rows.Close()
	return loop.Run(ctx, c.DB, loop.Options{Tables: []statedb.TableMeta{c.Endpoints, c.CRDs, c.Wanted}}, func(r *loop.Round) error {
		in, now := c.read(r), time.Now()

		out := c.resolve(r.Txn, in, now)

		c.store(&out, now)
		if err := c.commit(r.Txn, in, out); err != nil {
			health.Degraded("identities are out of date", err)
			return err
		}

		c.report(health, in, out)
		if c.complete {
			out.requestPass(c.whole.Add(endpointfeed.FullPassInterval))
		}
		if !out.again.IsZero() {
			r.Within(time.Until(out.again))
		}
		return nil
	})
}

func (c *controller) subscribe() (err error) {
	txn := c.DB.WriteTxn(c.CRDs, c.Endpoints)
	defer txn.Commit()
	c.whole = time.Time{}
	if c.mirror, err = changefeed.Follow(txn, c.CRDs); err != nil {
		return err
	}
	if c.rows, err = changefeed.Follow(txn, c.Endpoints); err != nil {
		c.mirror.Close()
	}
	return err
}

// set is the label set of one or more endpoints.
type set struct {
	labels  map[string]string
	partial bool // no endpoint is known to have exactly these labels

	since time.Time // time at which it was first seen without a number; set for the backend
}

// input is the input of one pass.
type input struct {
	marked   endpointfeed.Marks // endpoints to process
	whole    bool               // marked contains all endpoints
	sets     map[string]set
	objects  []statedb.Change[*cilium.Identity] // changes of cilium-identities
	gone     map[uint32]bool                    // numbers of deleted objects
	restored bool                               // the table endpoints is initialized
	synced   bool                               // the table cilium-identities is initialized
	culprits *string                            // labels that cause so many sets; empty until blame computes them
}

func (c *controller) read(r *loop.Round) input {
	in := input{sets: map[string]set{}, gone: map[uint32]bool{}, culprits: new(string)}
	r.Watch(c.Wanted, c.Servers)
	in.restored, in.synced = r.Complete(c.Endpoints), r.Complete(c.CRDs)
	in.objects = c.mirror.UpTo(r.Txn, r.Changed)
	for _, change := range in.objects {
		in.gone[change.Object.ID] = change.Deleted
	}
	c.follow(r, &in)
	for key, of := range c.sets {
		for id := range of { // any member
			in.sets[key] = set{labels: c.memo[id].relevant, partial: of.partial()}
			break
		}
	}
	return in
}

// follow applies changed endpoints. It processes all endpoints until both tables are initialized, and once a minute.
func (c *controller) follow(r *loop.Round, in *input) {
	in.marked = endpointfeed.Marks{}
	endpointfeed.Mark(in.marked, c.rows.UpTo(r.Txn, r.Changed), func(ep *endpoints.Endpoint) uint16 { return ep.ID })
	if in.whole = !c.complete || time.Since(c.whole) >= endpointfeed.FullPassInterval; in.whole {
		c.whole = time.Now()
		clear(c.outcomes)
		for id := range c.memo {
			in.marked[id] = true
		}
		for ep := range c.Endpoints.All(r.Txn) {
			in.marked[ep.ID] = true
		}
	}
	for id := range in.marked {
		if was, found := c.memo[id]; found {
			if delete(c.sets[was.key], id); len(c.sets[was.key]) == 0 {
				delete(c.sets, was.key)
			}
		}
		ep, _, found := c.Endpoints.Get(r.Txn, endpoints.ByID(id))
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

// output is the desired content of the tables.
type output struct {
	byKey    map[string]number  // numbers of label sets
	why      map[string]string  // reasons why a set has no number of the cluster for a long time
	want     map[string]*wanted // label sets that need an object
	problems []error
	unstored error     // why files of numbers cannot be written
	waiting  int       // label sets whose number has no file
	again    time.Time // time of the next pass without a change; zero for none
}

// requestPass requests a pass at a time, unless an earlier one is requested; the zero time requests none.
func (o *output) requestPass(at time.Time) {
	if !at.IsZero() && (o.again.IsZero() || at.Before(o.again)) {
		o.again = at
	}
}

// resolve returns the number of each label set.
func (c *controller) resolve(txn statedb.ReadTxn, in input, now time.Time) output {
	out := output{byKey: map[string]number{}, why: map[string]string{}, want: map[string]*wanted{}}
	if in.restored {
		c.numbers.retain(func(key string) bool { _, used := in.sets[key]; return used })
	}
	maps.DeleteFunc(c.since, func(key string, _ time.Time) bool { _, used := in.sets[key]; return !used })
	for _, key := range slices.Sorted(maps.Keys(in.sets)) { // equal inputs must give equal numbers
		s := in.sets[key]
		if s.since = c.since[key]; s.since.IsZero() {
			s.since = now
		}
		choice := c.choose(txn, in, key, s, now)
		out.problems = append(out.problems, choice.problem)
		if choice.want != nil {
			out.want[key] = choice.want
		}
		out.requestPass(choice.again)
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
	// Two label sets never have the same number: a set that lost its number in numbers.set gets another one in the next pass.
	for key, n := range out.byKey {
		if n.Source != identities.Reserved && c.numbers.byKey[key].ID != n.ID {
			delete(out.byKey, key)
			out.again = now
		}
	}
	return out
}

// Times until the next attempt to write files of numbers. The attempts are as far apart as the first one is in the past.
const (
	minStoreRetry = time.Second
	maxStoreRetry = 30 * time.Second
)

// store writes the files of numbers, and removes numbers of this node without a file from the output: after a crash, this node would assign them to other
// labels while maps still have them. A number of the cluster needs no file, because its object assigns it to the same labels.
func (c *controller) store(out *output, now time.Time) {
	if out.unstored = c.numbers.save(); out.unstored == nil {
		c.failing = time.Time{}
		return
	}
	if c.failing.IsZero() {
		c.failing = now
	}
	out.requestPass(now.Add(min(max(now.Sub(c.failing), minStoreRetry), maxStoreRetry)))
	for key, n := range out.byKey {
		if n.Source != identities.CRD && c.numbers.dirty[n.ID] {
			delete(out.byKey, key)
			out.waiting++
		}
	}
}

func (c *controller) report(health cell.Health, in input, out output) {
	if out.unstored != nil {
		health.Degraded(fmt.Sprintf("files of identities cannot be written, and %d of %d label sets wait for theirs: free space in the state directory",
			out.waiting, len(in.sets)), out.unstored)
		return
	}
	problems := slices.DeleteFunc(out.problems, func(err error) bool { return err == nil })
	if len(problems) > 0 {
		slices.SortFunc(problems, func(a, b error) int { return len(a.Error()) - len(b.Error()) })
		health.Degraded(fmt.Sprintf("%d of %d label sets have no identity of the cluster", len(problems), len(in.sets)),
			errors.Join(problems[:min(len(problems), maxProblems)]...))
		return
	}
	health.OK(fmt.Sprintf("%d endpoints with %d label sets", len(c.memo), len(in.sets)))
}

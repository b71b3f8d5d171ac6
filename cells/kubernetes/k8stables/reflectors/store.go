package reflectors

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/cilium/statedb"
	"golang.org/x/time/rate"

	"github.com/waggle-net/waggle/cells/kubernetes/k8stables/tables"
	"github.com/waggle-net/waggle/pkg/kubernetes/k8sobjects"
	"github.com/waggle-net/waggle/pkg/printable"
	"github.com/waggle-net/waggle/pkg/tables/sources"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

const (
	// commitInterval is the minimum time between two commits of one table. Events that arrive meanwhile are part of the next commit. The first event
	// after a pause is committed immediately.
	commitInterval = 10 * time.Millisecond
	// sustainedInterval is the mean time between two commits of one table while events arrive without end: in a large cluster, a commit costs the agent more
	// than the events in it. commitBurst is the number of commits that may come earlier.
	sustainedInterval, commitBurst = 50 * time.Millisecond, 20
	// maxPending bounds the number of pending events.
	maxPending = 4096
)

// store is the reflector store of one resource: it writes the rows of the resource to their table. The reflector calls it from one goroutine.
type store struct {
	kind
	set         *tables.Set
	table       tables.Table
	lw          *listWatch
	report      *report
	initialized func(statedb.WriteTxn)
	seen        uint64 // version of the last list or event

	mu      sync.Mutex // guards pending
	pending []event
	wake    chan struct{} // has a token while events are pending

	apply    sync.Mutex               // held during commits, so that they stay in order; guards the fields below
	rejected map[string]tables.Reject // by key of the object
	held     map[string]time.Time     // rows that are missing in the last list, with the time of their removal, by key
	all      int                      // number of rows after that list
}

// event is a change that is not in the table yet.
type event struct {
	*object
	deleted bool
}

// Add implements cache.ReflectorStore.
func (s *store) Add(in any) error { return s.take(in, false) }

// Update implements cache.ReflectorStore.
func (s *store) Update(in any) error { return s.take(in, false) }

// Delete implements cache.ReflectorStore.
func (s *store) Delete(in any) error { return s.take(in, true) }

// Resync implements cache.ReflectorStore. The reflector has no resync period and never calls it.
func (s *store) Resync() error { return nil }

// take queues an event, and the events that arrived together with it, for the next commit.
func (s *store) take(in any, deleted bool) error {
	o, ok := in.(*object)
	if !ok {
		return fmt.Errorf("%s: unexpected %T in a watch", s.resource, in)
	}
	before := o.before
	o.before = nil
	s.mu.Lock()
	for _, e := range before {
		s.add(e)
	}
	s.add(event{o, deleted})
	waiting := len(s.pending)
	s.mu.Unlock()
	switch {
	case waiting >= maxPending:
		return s.flush()
	case waiting > 0:
		s.awake()
	}
	return nil
}

// awake wakes the goroutine that commits pending events and removes held rows whose time is over.
func (s *store) awake() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// add queues an event. Versions of one resource rise from event to event, so an event that is not newer than the last one is a duplicate or late, and
// is dropped. The caller must hold mu.
func (s *store) add(e event) {
	if version, err := strconv.ParseUint(e.version, 10, 64); err == nil {
		if version <= s.seen {
			return
		}
		s.seen = version
	}
	s.pending = append(s.pending, e)
}

// commits commits pending events, one commit for each burst, until ctx ends. At the end it commits the remaining events.
func (s *store) commits(ctx context.Context) {
	ctx, end := watchdog.With(ctx, s.table.Name())
	defer end()
	defer func() { s.report.recordWrite(s.flush()) }()
	sustained := rate.NewLimiter(rate.Every(sustainedInterval), commitBurst)
	for last := (time.Time{}); ; last = time.Now() {
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		}
		if rest := max(commitInterval-time.Since(last), sustained.Reserve().Delay()); rest > 0 {
			if pause(ctx, rest); ctx.Err() != nil {
				return
			}
		}
		watchdog.Busy(ctx)
		s.report.recordWrite(s.flush())
		watchdog.Idle(ctx)
	}
}

func (s *store) takePending() []event {
	s.mu.Lock()
	defer s.mu.Unlock()
	events := s.pending
	s.pending = nil
	return events
}

// flush commits all pending events in their order.
func (s *store) flush() error {
	s.apply.Lock()
	defer s.apply.Unlock()
	events := s.takePending()
	if len(events) == 0 && len(s.held) == 0 {
		return nil
	}
	txn := s.begin(events)
	defer txn.Abort()
	for _, e := range events {
		if err := s.one(txn, e); err != nil {
			return err
		}
	}
	if err := s.release(txn, events); err != nil {
		return err
	}
	txn.Commit()
	s.report.rejects(s.rejected, missingRows{len(s.held), s.all})
	return nil
}

// begin opens a transaction for events. It includes the tables that all stores share only if an event changes k8s-rejects: another store holds these tables
// while it writes a list of all pods, and a policy must not wait for that.
func (s *store) begin(events []event) statedb.WriteTxn {
	if slices.ContainsFunc(events, func(e event) bool { _, rejected := s.rejected[e.key()]; return rejected || e.err != nil }) {
		return s.set.Write(s.table)
	}
	return s.set.DB.WriteTxn(s.table.Meta())
}

// one applies an event.
func (s *store) one(txn statedb.WriteTxn, e event) error {
	var skip k8sobjects.NotForUs
	var partly k8sobjects.Partly
	switch {
	case e.deleted || errors.As(e.err, &skip):
		if err := s.accept(txn, e.key()); err != nil {
			return err
		}
		return s.table.Delete(txn, e.key())
	case errors.As(e.err, &partly):
		if err := s.note(txn, e.object, false); err != nil {
			return err
		}
		return s.table.Put(txn, e.row)
	case e.err != nil:
		_, err := s.reject(txn, e.object)
		return err
	}
	if err := s.accept(txn, e.key()); err != nil {
		return err
	}
	return s.table.Put(txn, e.row)
}

// reject records the error of an object. It keeps the row of the object's last good state and reports whether there is one. It deletes the row of
// another object of the same name.
func (s *store) reject(txn statedb.WriteTxn, o *object) (kept bool, err error) {
	old, found := s.table.Get(txn, o.key())
	kept = found && s.table.UID(old) == string(o.uid)
	if found && !kept {
		if err := s.table.Delete(txn, o.key()); err != nil {
			return false, err
		}
	}
	return kept, s.note(txn, o, kept)
}

// note records the error of an object. An object with a row is in use without the invalid part.
func (s *store) note(txn statedb.WriteTxn, o *object, kept bool) error {
	row := tables.Reject{Resource: s.resource.String(), Object: o.key(), UID: string(o.uid),
		Reason: printable.Short(o.err.Error(), maxText), Kept: kept, Used: o.row != nil}
	s.rejected[o.key()] = row
	if _, _, err := s.set.Rejects.Insert(txn, row); err != nil {
		return fmt.Errorf("insert a rejected object: %w", err)
	}
	return nil
}

// accept deletes the record of a rejected object.
func (s *store) accept(txn statedb.WriteTxn, key string) error {
	row, ok := s.rejected[key]
	if !ok {
		return nil
	}
	delete(s.rejected, key)
	if _, _, err := s.set.Rejects.Delete(txn, row); err != nil {
		return fmt.Errorf("delete a rejected object: %w", err)
	}
	return nil
}

// Replace implements cache.ReflectorStore: it replaces the rows of the resource by a list. It rejects a list that lacks most of the rows; the
// reflector then lists again, with a quorum read, whose result is applied.
func (s *store) Replace(items []any, version string) error {
	s.apply.Lock()
	defer s.apply.Unlock()
	if err := s.believe(len(items)); err != nil {
		s.report.listed(context.Background(), err)
		return err
	}
	s.takePending() // older than the list
	txn := s.set.Write(s.table)
	defer txn.Abort()
	if err := s.replace(txn, items); err != nil {
		return err
	}
	s.initialized(txn)
	if err := s.synced(txn); err != nil {
		return err
	}
	txn.Commit()
	s.lw.quorum.Store(false)
	s.seen, _ = strconv.ParseUint(version, 10, 64) // 0 if the version is not a number: then no event counts as old
	s.report.replaced(s.rejected, missingRows{len(s.held), s.all})
	return nil
}

// few is the number of objects that a list may lack without a confirmation, unless it lacks all.
const few = 10

func (s *store) believe(count int) error {
	have := 0
	txn := s.set.DB.ReadTxn()
	for row := range s.table.All(txn) {
		if s.mine(row) {
			have++
		}
	}
	lostMost := have > 0 && count == 0 || have-count > few && count < have/2
	if !lostMost || s.lw.quorum.Load() {
		return nil
	}
	s.lw.quorum.Store(true)
	return fmt.Errorf("list %s: it has %d objects where the table has %d; a second list, by quorum, has to confirm that",
		s.resource, count, have)
}

func (s *store) replace(txn statedb.WriteTxn, items []any) error {
	want := make(map[string]k8sobjects.Row, len(items))
	listed := make(map[string]bool)
	var skip k8sobjects.NotForUs
	var partly k8sobjects.Partly
	for _, in := range items {
		o, ok := in.(*object)
		switch {
		case !ok:
			return fmt.Errorf("%s: unexpected %T in a list", s.resource, in)
		case o.err == nil:
			want[o.key()] = o.row
		case errors.As(o.err, &partly):
			want[o.key()], listed[o.key()] = o.row, true
			if err := s.note(txn, o, false); err != nil {
				return err
			}
		case !errors.As(o.err, &skip):
			listed[o.key()] = true
			kept, err := s.reject(txn, o)
			if err != nil {
				return err
			}
			if kept {
				want[o.key()], _ = s.table.Get(txn, o.key())
			}
		}
	}
	for key := range s.rejected {
		if !listed[key] {
			if err := s.accept(txn, key); err != nil {
				return err
			}
		}
	}
	s.retain(txn, want)
	return tables.Replace(txn, s.table, want, s.mine)
}

// synced sets the source of the table to synced once the last of its resources is complete.
func (s *store) synced(txn statedb.WriteTxn) error {
	if len(s.table.Pending(txn)) > 0 {
		return nil
	}
	return s.set.SetSource(txn, sources.Source{Table: s.table.Name(), Producer: Producer, State: sources.Synced})
}

package watchdog

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
)

// Register is reconciler.Register with the watchdog for its operations and pending rows. Readiness waits for it, see [Monitor.Lagging].
func Register[Obj comparable](params reconciler.Params, table statedb.RWTable[Obj], clone func(Obj) Obj,
	setStatus func(Obj, reconciler.Status) Obj, getStatus func(Obj) reconciler.Status,
	ops reconciler.Operations[Obj], batch reconciler.BatchOperations[Obj], options ...reconciler.Option,
) (reconciler.Reconciler[Obj], error) {
	return register(params, table, clone, setStatus, getStatus, ops, batch, false, options)
}

// RegisterRemote is [Register] for objects in the API server, which may be unavailable: readiness does not wait for it.
func RegisterRemote[Obj comparable](params reconciler.Params, table statedb.RWTable[Obj], clone func(Obj) Obj,
	setStatus func(Obj, reconciler.Status) Obj, getStatus func(Obj) reconciler.Status,
	ops reconciler.Operations[Obj], batch reconciler.BatchOperations[Obj], options ...reconciler.Option,
) (reconciler.Reconciler[Obj], error) {
	return register(params, table, clone, setStatus, getStatus, ops, batch, true, options)
}

func register[Obj comparable](params reconciler.Params, table statedb.RWTable[Obj], clone func(Obj) Obj,
	setStatus func(Obj, reconciler.Status) Obj, getStatus func(Obj) reconciler.Status,
	ops reconciler.Operations[Obj], batch reconciler.BatchOperations[Obj], remote bool, options []reconciler.Option,
) (reconciler.Reconciler[Obj], error) {
	g, ok := params.JobGroup.(*group)
	if !ok {
		return reconciler.Register(params, table, clone, setStatus, getStatus, ops, batch, options...)
	}
	w := &work{loop: g.begin("reconcile-" + table.Name())}
	g.monitor.add(&pending[Obj]{work: w, table: table, status: getStatus, remote: remote})
	if batch != nil {
		batch = batchOperations[Obj]{w, batch}
	}
	return reconciler.Register(params, table, clone, setStatus, getStatus, operations[Obj]{w, ops}, batch, options...)
}

// Follow makes readiness wait for rows that a loop writes to the kernel without a reconciler, see [Monitor.Lagging]. The loop sets the statuses of the
// rows and must be added like any other, so that its stalls are detected. The table has an initializer named first, which is completed when all rows
// known at the start are in, from their sources or from a copy on disk. Until then the table counts as lagging.
func Follow[Obj any](g job.Group, table statedb.Table[Obj], status func(Obj) reconciler.Status, first string) {
	if known, ok := g.(*group); ok {
		known.monitor.add(followed[Obj]{&pending[Obj]{table: table, status: status, first: first}})
	}
}

// followed is the table of a loop that is added with [Follow].
type followed[Obj any] struct{ *pending[Obj] }

// evaluate implements evaluator. It never reports a fault, but records the state for [pending.lagging].
func (f followed[Obj]) evaluate(now int64, txn statedb.ReadTxn) (string, int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.look(now, txn)
	return "", 0
}

// work is the loop of one reconciler: its current operation.
type work struct {
	*loop
	attempted atomic.Int64 // end of the last attempt, in the monitor's time
}

func (w *work) begin(ctx context.Context) context.Context {
	w.loop.work()
	return context.WithValue(ctx, key{}, w.loop)
}

func (w *work) end() {
	w.attempted.Store(w.monitor.clock.Load())
	w.rest(0)
}

type operations[Obj any] struct {
	*work
	inner reconciler.Operations[Obj]
}

// Update implements reconciler.Operations.
func (o operations[Obj]) Update(ctx context.Context, txn statedb.ReadTxn, rev statedb.Revision, obj Obj) error {
	defer o.end()
	return o.inner.Update(o.begin(ctx), txn, rev, obj)
}

// Delete implements reconciler.Operations.
func (o operations[Obj]) Delete(ctx context.Context, txn statedb.ReadTxn, rev statedb.Revision, obj Obj) error {
	defer o.end()
	return o.inner.Delete(o.begin(ctx), txn, rev, obj)
}

// Prune implements reconciler.Operations.
func (o operations[Obj]) Prune(ctx context.Context, txn statedb.ReadTxn, rows iter.Seq2[Obj, statedb.Revision]) error {
	defer o.end()
	return o.inner.Prune(o.begin(ctx), txn, rows)
}

type batchOperations[Obj any] struct {
	*work
	inner reconciler.BatchOperations[Obj]
}

// UpdateBatch implements reconciler.BatchOperations.
func (o batchOperations[Obj]) UpdateBatch(ctx context.Context, txn statedb.ReadTxn, batch []reconciler.BatchEntry[Obj]) {
	defer o.end()
	o.inner.UpdateBatch(o.begin(ctx), txn, batch)
}

// DeleteBatch implements reconciler.BatchOperations.
func (o batchOperations[Obj]) DeleteBatch(ctx context.Context, txn statedb.ReadTxn, batch []reconciler.BatchEntry[Obj]) {
	defer o.end()
	o.inner.DeleteBatch(o.begin(ctx), txn, batch)
}

// pending checks the pending rows of a reconciler's table. Rows in Error are being retried and do not count.
type pending[Obj any] struct {
	*work
	table  statedb.Table[Obj]
	status func(Obj) reconciler.Status
	remote bool
	first  string // initializer of the first rows; empty if all rows of the table count

	mu       sync.Mutex       // guards the fields below; held while rows are read from a snapshot
	caughtUp bool             // at least once since the start, no row was pending
	clean    statedb.Revision // no row before this revision is pending
	since    int64            // start of the current period with pending rows, plus one; 0 while none is pending
	oldest   statedb.Revision // revision of the oldest pending row
	oldestAt int64            // time since which that row is the oldest
}

func (p *pending[Obj]) evaluate(now int64, txn statedb.ReadTxn) (wrong string, since int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	row, found := p.look(now, txn)
	if !found {
		return "", 0
	}
	if p.busy.Load() != 0 {
		return "", 0 // the check of the loop limits the time of an attempt
	}
	if since := max(p.since-1, p.attempted.Load()); now-since > int64(pendingLimit) {
		return fmt.Sprintf("row %s of table %s is pending, and %s attempts no row", row, p.table.Name(), p.name), since
	}
	if now-p.oldestAt > int64(starvedLimit) {
		return fmt.Sprintf("row %s of table %s is pending, and %s attempts only other rows", row, p.table.Name(), p.name), p.oldestAt
	}
	return "", 0
}

// look finds the oldest pending row, and records since when it is the oldest.
func (p *pending[Obj]) look(now int64, txn statedb.ReadTxn) (row string, found bool) {
	row, revision, found := p.waits(txn)
	if !found {
		p.caughtUp = p.caughtUp || p.known(txn)
		p.since = 0
		return "", false
	}
	if p.since == 0 {
		p.since = now + 1
	}
	if p.oldest != revision {
		p.oldest, p.oldestAt = revision, now
	}
	return row, true
}

// lagging implements reconciled. Rows of pods are often pending briefly, which must not make the node unready.
func (p *pending[Obj]) lagging(now int64, txn statedb.ReadTxn) string {
	if p.remote {
		return ""
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	older := p.table.Revision(txn)+1 < p.clean // than the snapshot of another query, so that its pending rows may have been skipped
	row, revision, found := p.waits(txn)
	known := p.known(txn)
	p.caughtUp = p.caughtUp || !found && known && !older // the first step may be a second away
	if !found && p.first != "" && !known {
		return fmt.Sprintf("the first rows of table %s", p.table.Name())
	}
	if !found || p.caughtUp && (p.oldest != revision || now-p.oldestAt <= int64(lateLimit)) {
		return ""
	}
	return fmt.Sprintf("row %s of table %s to be in the kernel", row, p.table.Name())
}

// known reports whether the table has the rows that must be in the kernel at the start.
func (p *pending[Obj]) known(txn statedb.ReadTxn) bool {
	if p.first != "" {
		return !slices.Contains(p.table.PendingInitializers(txn), p.first)
	}
	all, _ := p.table.Initialized(txn)
	return all
}

// watch implements reconciled. Completing one of several initializers does not close a watch channel of the table, so the next step wakes the watchers.
func (p *pending[Obj]) watch(txn statedb.ReadTxn, set *statedb.WatchSet, step <-chan struct{}) {
	_, changed := p.table.AllWatch(txn)
	set.Add(changed)
	if p.first != "" && !p.known(txn) {
		set.Add(step)
	}
}

// waits finds the oldest pending row. It reads each row only once per change.
func (p *pending[Obj]) waits(txn statedb.ReadTxn) (name string, revision statedb.Revision, found bool) {
	for row, revision := range p.table.LowerBound(txn, statedb.ByRevision[Obj](p.clean)) {
		if p.status(row).IsPendingOrRefreshing() {
			p.clean = revision
			return p.label(row), revision, true
		}
	}
	p.clean = p.table.Revision(txn) + 1
	return "", 0, false
}

// label returns the first column of the row as operators see it, or its key.
func (p *pending[Obj]) label(row Obj) string {
	if shown, ok := any(row).(statedb.TableWritable); ok {
		return shown.TableRow()[0]
	}
	return fmt.Sprintf("%q", p.table.PrimaryIndexer().ObjectToKey(row))
}

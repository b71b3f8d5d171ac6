package heartbeat

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

// Register is reconciler.Register with its operations and the rows that wait for them watched. Readiness waits for it, see
// [Monitor.Behind].
func Register[Obj comparable](params reconciler.Params, table statedb.RWTable[Obj], clone func(Obj) Obj,
	setStatus func(Obj, reconciler.Status) Obj, getStatus func(Obj) reconciler.Status,
	ops reconciler.Operations[Obj], batch reconciler.BatchOperations[Obj], options ...reconciler.Option,
) (reconciler.Reconciler[Obj], error) {
	return register(params, table, clone, setStatus, getStatus, ops, batch, false, options)
}

// RegisterRemote is [Register] for what stands in the API server, which may be away: readiness does not wait for it.
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

// Follow has readiness wait for rows that a loop brings to the kernel without a reconciler, see [Monitor.Behind]. The loop, which is added like
// any other, sets their statuses; that it hangs is found as of any other. The table has an initializer of the name first, which is completed with
// the last of the rows that can be known at the start, the sources' own or a copy of before: until then nobody has caught up.
func Follow[Obj any](g job.Group, table statedb.Table[Obj], status func(Obj) reconciler.Status, first string) {
	if known, ok := g.(*group); ok {
		known.monitor.add(followed[Obj]{&pending[Obj]{table: table, status: status, first: first}})
	}
}

// followed is the table of such a loop.
type followed[Obj any] struct{ *pending[Obj] }

// judge implements judged. It finds nothing wrong, and keeps what [pending.behind] needs.
func (f followed[Obj]) judge(now int64, txn statedb.ReadTxn) (string, int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.look(now, txn)
	return "", 0
}

// work is what the operations of one reconciler do at the moment: they are its loop.
type work struct {
	*loop
	attempted atomic.Int64 // when the last attempt ended, in the monitor's time
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

// pending judges the rows of a table that wait for their reconciler. Rows in Error are being retried and do not count.
type pending[Obj any] struct {
	*work
	table  statedb.Table[Obj]
	status func(Obj) reconciler.Status
	remote bool
	first  string // the initializer of the first rows; empty when all rows of the table count

	mu       sync.Mutex       // guards what follows; held while rows are read from a snapshot
	caughtUp bool             // once since the start, no row waited
	clean    statedb.Revision // no row before this revision waits
	since    int64            // since when rows have waited without a break, plus one; 0 while none waits
	oldest   statedb.Revision // the revision of the first of them
	oldestAt int64            // since when that is the first
}

func (p *pending[Obj]) judge(now int64, txn statedb.ReadTxn) (wrong string, since int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	row, found := p.look(now, txn)
	if !found {
		return "", 0
	}
	if p.busy.Load() != 0 {
		return "", 0 // the loop judges how long an attempt may take
	}
	if since := max(p.since-1, p.attempted.Load()); now-since > int64(pendingLimit) {
		return fmt.Sprintf("row %s of table %s waits, and %s attempts nothing", row, p.table.Name(), p.name), since
	}
	if now-p.oldestAt > int64(starvedLimit) {
		return fmt.Sprintf("row %s of table %s waits, and %s attempts only others", row, p.table.Name(), p.name), p.oldestAt
	}
	return "", 0
}

// look finds the row that has waited for longest, and notes since when.
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

// behind implements reconciled. Rows of pods wait for moments all the time, which makes no node unready.
func (p *pending[Obj]) behind(now int64, txn statedb.ReadTxn) string {
	if p.remote {
		return ""
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	row, revision, found := p.waits(txn)
	if !found && p.first != "" && !p.known(txn) {
		return fmt.Sprintf("the first rows of table %s", p.table.Name())
	}
	if !found || p.caughtUp && (p.oldest != revision || now-p.oldestAt <= int64(lateLimit)) {
		return ""
	}
	return fmt.Sprintf("row %s of table %s to be in the kernel", row, p.table.Name())
}

// known tells whether the table has the rows that have to be in the kernel at the start.
func (p *pending[Obj]) known(txn statedb.ReadTxn) bool {
	if p.first != "" {
		return !slices.Contains(p.table.PendingInitializers(txn), p.first)
	}
	all, _ := p.table.Initialized(txn)
	return all
}

// watch implements reconciled. That one of several initializers is complete wakes nobody who waits for the table, so the next step does.
func (p *pending[Obj]) watch(txn statedb.ReadTxn, set *statedb.WatchSet, step <-chan struct{}) {
	_, changed := p.table.AllWatch(txn)
	set.Add(changed)
	if p.first != "" && !p.known(txn) {
		set.Add(step)
	}
}

// waits finds the row that has waited for longest. Rows are looked at once for each time that they change.
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

// label is the first column of what operators see of a row, or its key.
func (p *pending[Obj]) label(row Obj) string {
	if shown, ok := any(row).(statedb.TableWritable); ok {
		return shown.TableRow()[0]
	}
	return fmt.Sprintf("%q", p.table.PrimaryIndexer().ObjectToKey(row))
}

package watchdog

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/statedb"
)

const (
	// Interval is the time between two calls of [Monitor.Step].
	Interval = time.Second / scale
	// maxStep limits the time that one step counts, however long ago the previous one was.
	maxStep = 2 * Interval

	busyLimit    = 40 * time.Second / scale // longer than any request to the API server
	idleLimit    = 30 * time.Second / scale
	startLimit   = 5 * time.Minute / scale  // time of all start hooks: see the package hive
	lateLimit    = 10 * time.Second / scale // time of a pending row before the node counts as lagging
	pendingLimit = 30 * time.Second / scale
	starvedLimit = 5 * time.Minute / scale // time of a pending row while its reconciler attempts others
	txnLimit     = 10 * time.Second / scale
)

// Stall is a loop, row or table lock that makes no progress.
type Stall struct {
	What  string        // one line, beginning with loop, table or row and its name
	Since time.Time     // by the wall clock
	For   time.Duration // in the monitor's time
}

// Monitor checks loops, reconcilers and write transactions. It must be created before them.
type Monitor struct {
	// Fault, if set, is called with the name of a loop at each start of its work, so that a test can block the loop. It must be set before loops start.
	Fault func(loop string)

	clock   atomic.Int64 // ns that this process ran, as counted by the steps
	verdict atomic.Pointer[[]Stall]
	stepped atomic.Pointer[time.Time] // end of the last step
	held    sync.Map                  // name of a table -> *hold

	mu      sync.Mutex // guards the fields below, only briefly; no function is called under it
	watched []evaluator
	next    chan struct{} // closed at the end of the next step
}

// evaluator is a loop or a reconciler. It gets the monitor's time and returns a fault and since when it exists.
type evaluator interface {
	evaluate(now int64, txn statedb.ReadTxn) (wrong string, since int64)
}

// reconciled is a reconciler. lagging returns a pending row, or an empty string. Until no row is pending for the first time since the start, any pending row
// counts; afterwards only a row that has been pending for 10 s. watch adds channels to set that close when the result may change; step closes with the next
// step.
type reconciled interface {
	lagging(now int64, txn statedb.ReadTxn) string
	watch(txn statedb.ReadTxn, set *statedb.WatchSet, step <-chan struct{})
}

// NewMonitor returns a monitor without loops.
func NewMonitor() *Monitor {
	m := &Monitor{next: make(chan struct{})}
	m.verdict.Store(&[]Stall{})
	return m
}

// Stalls returns the stalls that the last step found, the oldest first. It never blocks.
func (m *Monitor) Stalls() []Stall { return *m.verdict.Load() }

// Step advances the monitor's time by elapsed, but by 2 s at most, and checks all loops. Only one goroutine may call it. It takes no lock that a loop
// holds while it works.
func (m *Monitor) Step(elapsed time.Duration, txn statedb.ReadTxn) []Stall {
	now := m.clock.Add(int64(min(elapsed, maxStep)))
	m.mu.Lock()
	watched := slices.Clone(m.watched)
	m.mu.Unlock()

	stalls := []Stall{}
	report := func(what string, since int64) {
		length := time.Duration(now - since)
		stalls = append(stalls, Stall{What: what, Since: time.Now().Add(-length), For: length})
	}
	for _, j := range watched {
		if wrong, since := j.evaluate(now, txn); wrong != "" {
			report(wrong, since)
		}
	}
	for wrong, since := range m.stalledTables(now) {
		report(wrong, since)
	}
	slices.SortStableFunc(stalls, func(a, b Stall) int { return cmp.Compare(b.For, a.For) })
	m.verdict.Store(&stalls)
	at := time.Now()
	m.stepped.Store(&at)
	m.mu.Lock()
	defer m.mu.Unlock()
	close(m.next)
	m.next = make(chan struct{})
	return stalls
}

// Lagging returns, for each lagging reconciler of the kernel and each lagging table of [Follow], a pending row. A failed attempt counts as attempted,
// because the row shows the error. While the first rows of a table are incomplete, the table is returned instead. Without a monitor the result is
// empty.
func (m *Monitor) Lagging(txn statedb.ReadTxn) (rows []string) {
	for _, r := range m.reconcilers() {
		if row := r.lagging(m.clock.Load(), txn); row != "" {
			rows = append(rows, row)
		}
	}
	return rows
}

// Watch adds channels to set that close when the result of [Monitor.Lagging] may change.
func (m *Monitor) Watch(txn statedb.ReadTxn, set *statedb.WatchSet) {
	if m == nil {
		return
	}
	m.mu.Lock()
	next := m.next
	m.mu.Unlock()
	for _, r := range m.reconcilers() {
		r.watch(txn, set, next)
	}
}

func (m *Monitor) reconcilers() (all []reconciled) {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, j := range m.watched {
		if r, ok := j.(reconciled); ok {
			all = append(all, r)
		}
	}
	return all
}

// Loops returns the sorted names of all loops.
func (m *Monitor) Loops() (names []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, j := range m.watched {
		if l, ok := j.(*loop); ok {
			names = append(names, l.name)
		}
	}
	slices.Sort(names)
	return names
}

func (m *Monitor) begin(name string) *loop {
	l := &loop{monitor: m, name: name, limit: busyLimit}
	m.add(l)
	return l
}

func (m *Monitor) add(j evaluator) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.watched = append(m.watched, j)
}

func (m *Monitor) forget(l *loop) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.watched = slices.DeleteFunc(m.watched, func(j evaluator) bool { return j == evaluator(l) })
}

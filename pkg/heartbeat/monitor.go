package heartbeat

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/statedb"
)

const (
	// Interval is how often [Monitor.Step] is to be called.
	Interval = time.Second / scale
	// maxStep is what one step counts at most, however long ago the one before was.
	maxStep = 2 * Interval

	busyLimit    = 40 * time.Second / scale // longer than any request to the API server may take
	idleLimit    = 30 * time.Second / scale
	lateLimit    = 10 * time.Second / scale // of a row, before the node counts as behind
	pendingLimit = 30 * time.Second / scale
	starvedLimit = 5 * time.Minute / scale // of one row, while its reconciler attempts others
	txnLimit     = 10 * time.Second / scale
)

// Wedge is something that hangs.
type Wedge struct {
	What  string        // one line, which begins with loop, table or row and its name
	Since time.Time     // by the wall clock
	For   time.Duration // in the monitor's time
}

// Monitor judges loops, reconcilers and write transactions. It is made before everything that it watches.
type Monitor struct {
	clock   atomic.Int64 // nanoseconds in which this process ran, as far as the monitor has seen
	verdict atomic.Pointer[[]Wedge]
	stepped atomic.Pointer[time.Time] // when the last step ended
	held    sync.Map                  // name of a table -> *hold

	mu      sync.Mutex // guards what follows, for a moment each time; nothing is called under it
	watched []judged
	next    chan struct{} // closes with the end of the next step
}

// judged is a loop or a reconciler. It is told the monitor's time and says since when something is wrong.
type judged interface {
	judge(now int64, txn statedb.ReadTxn) (wrong string, since int64)
}

// reconciled is a reconciler. It says which row has not been attempted yet: any until there was none for the first time, and
// after that one which waits for 10 s. To a set it adds what closes when it may say something else; step closes with the next step.
type reconciled interface {
	behind(now int64, txn statedb.ReadTxn) string
	watch(txn statedb.ReadTxn, set *statedb.WatchSet, step <-chan struct{})
}

// NewMonitor makes a monitor that has seen nothing.
func NewMonitor() *Monitor {
	m := &Monitor{next: make(chan struct{})}
	m.verdict.Store(&[]Wedge{})
	return m
}

// Wedges are what the last step found, the oldest first. It never blocks.
func (m *Monitor) Wedges() []Wedge { return *m.verdict.Load() }

// Step lets the monitor's time pass by what has elapsed since the last step, though not by more than 2 s, and judges. Only
// one goroutine may call it. It takes no lock that a loop holds while it works.
func (m *Monitor) Step(elapsed time.Duration, txn statedb.ReadTxn) []Wedge {
	now := m.clock.Add(int64(min(elapsed, maxStep)))
	m.mu.Lock()
	watched := slices.Clone(m.watched)
	m.mu.Unlock()

	wedges := []Wedge{}
	report := func(what string, since int64) {
		length := time.Duration(now - since)
		wedges = append(wedges, Wedge{What: what, Since: time.Now().Add(-length), For: length})
	}
	for _, j := range watched {
		if wrong, since := j.judge(now, txn); wrong != "" {
			report(wrong, since)
		}
	}
	for wrong, since := range m.heldTooLong(now) {
		report(wrong, since)
	}
	slices.SortStableFunc(wedges, func(a, b Wedge) int { return cmp.Compare(b.For, a.For) })
	m.verdict.Store(&wedges)
	at := time.Now()
	m.stepped.Store(&at)
	m.mu.Lock()
	defer m.mu.Unlock()
	close(m.next)
	m.next = make(chan struct{})
	return wedges
}

// Behind says, for each reconciler of the kernel, and each table of [Follow], that has not caught up, for which row. A row whose attempt failed counts as
// attempted: it stands in the row what is wrong. A table of which the first rows are not known yet stands for all of them. Without a monitor nobody is behind.
func (m *Monitor) Behind(txn statedb.ReadTxn) (rows []string) {
	for _, r := range m.reconcilers() {
		if row := r.behind(m.clock.Load(), txn); row != "" {
			rows = append(rows, row)
		}
	}
	return rows
}

// Watch adds what closes when [Monitor.Behind] may have changed.
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

// Loops are the names of all loops, sorted.
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

func (m *Monitor) add(j judged) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.watched = append(m.watched, j)
}

func (m *Monitor) forget(l *loop) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.watched = slices.DeleteFunc(m.watched, func(j judged) bool { return j == judged(l) })
}

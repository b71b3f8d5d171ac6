package watchdog

import (
	"iter"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cilium/statedb"
)

// depth is the number of recorded callers of a write transaction, enough to reach the first caller outside the library.
const depth = 6

// hold is the state of the lock of one table. The counters differ while the lock is held. statedb reports the end of a transaction after it frees the
// lock, so the start of the next transaction may be reported before.
type hold struct {
	begun, ended atomic.Int64
	since        atomic.Int64 // start of the latest transaction, in the monitor's time
	by           atomic.Pointer[[depth]uintptr]
}

// transactions implements statedb.Metrics. statedb calls it in the goroutine that has just taken the table locks.
type transactions struct {
	statedb.Metrics
	monitor *Monitor
}

// Transactions returns inner with a check of write transactions. Without a monitor it returns inner.
func (m *Monitor) Transactions(inner statedb.Metrics) statedb.Metrics {
	if m == nil {
		return inner
	}
	return transactions{inner, m}
}

// WriteTxnTotalAcquisition implements statedb.Metrics.
func (t transactions) WriteTxnTotalAcquisition(handle string, tables []string, waited time.Duration) {
	var by [depth]uintptr
	runtime.Callers(2, by[:])
	now := t.monitor.clock.Load()
	for _, table := range tables {
		h := t.monitor.hold(table)
		h.since.Store(now)
		h.by.Store(&by)
		h.begun.Add(1)
	}
	t.Metrics.WriteTxnTotalAcquisition(handle, tables, waited)
}

// WriteTxnDuration implements statedb.Metrics.
func (t transactions) WriteTxnDuration(handle string, tables []string, d time.Duration) {
	for _, table := range tables {
		t.monitor.hold(table).ended.Add(1)
	}
	t.Metrics.WriteTxnDuration(handle, tables, d)
}

func (m *Monitor) hold(table string) *hold {
	if h, ok := m.held.Load(table); ok {
		return h.(*hold)
	}
	h, _ := m.held.LoadOrStore(table, &hold{})
	return h.(*hold)
}

// stalledTables returns the tables whose lock has been held for more than the limit.
func (m *Monitor) stalledTables(now int64) iter.Seq2[string, int64] {
	return func(yield func(string, int64) bool) {
		m.held.Range(func(table, value any) bool {
			h := value.(*hold)
			ended := h.ended.Load() // read before begun, so that a transaction that starts meanwhile is not missed
			since := h.since.Load()
			if h.begun.Load() <= ended || now-since <= int64(txnLimit) {
				return true
			}
			return yield("table "+table.(string)+" cannot be written: a write transaction of "+h.caller()+" does not end", since)
		})
	}
}

// caller returns the first caller outside the libraries.
func (h *hold) caller() string {
	by := h.by.Load()
	if by == nil {
		return "an unknown caller"
	}
	frames := runtime.CallersFrames(by[:])
	for {
		frame, more := frames.Next()
		if !strings.HasPrefix(frame.Function, "github.com/cilium/") || !more {
			return strings.TrimPrefix(frame.Function, "github.com/waggle-net/waggle/")
		}
	}
}

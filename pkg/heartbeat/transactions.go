package heartbeat

import (
	"iter"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cilium/statedb"
)

// depth is how many callers of a write transaction are kept: enough to leave the library and reach who asked for it.
const depth = 6

// hold is what is known of the lock of one table. The two counters differ while somebody holds it: the end of a
// transaction is told after its lock is free, so the beginning of the next one may come before it.
type hold struct {
	begun, ended atomic.Int64
	since        atomic.Int64 // when the latest began, in the monitor's time
	by           atomic.Pointer[[depth]uintptr]
}

// transactions implements statedb.Metrics: it is called by whoever has just taken the locks of tables.
type transactions struct {
	statedb.Metrics
	monitor *Monitor
}

// Transactions is inner, with write transactions watched. Without a monitor it is inner alone.
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

// heldTooLong lists tables that nobody else can write.
func (m *Monitor) heldTooLong(now int64) iter.Seq2[string, int64] {
	return func(yield func(string, int64) bool) {
		m.held.Range(func(table, value any) bool {
			h := value.(*hold)
			ended := h.ended.Load() // before begun, so that a transaction which begins meanwhile is not missed
			since := h.since.Load()
			if h.begun.Load() <= ended || now-since <= int64(txnLimit) {
				return true
			}
			return yield("table "+table.(string)+" cannot be written: a write transaction of "+h.holder()+" does not end", since)
		})
	}
}

// holder is the first caller outside of the libraries.
func (h *hold) holder() string {
	by := h.by.Load()
	if by == nil {
		return "somebody"
	}
	frames := runtime.CallersFrames(by[:])
	for {
		frame, more := frames.Next()
		if !strings.HasPrefix(frame.Function, "github.com/cilium/") || !more {
			return strings.TrimPrefix(frame.Function, "github.com/waggle-net/waggle/")
		}
	}
}

package policymaps

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/policy/policycompiler"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// slowEntries are maps whose writes take two seconds of the monitor's time each.
type slowEntries struct {
	fakeEntries
	passes func()
}

func (s slowEntries) Put(id uint32, e policycompiler.Entry) error {
	s.passes()
	return s.fakeEntries.Put(id, e)
}

// TestRun_LongPass_IsNoStall: the first round on a busy node takes minutes. The watchdog does not report it as stalled, so the agent is not restarted.
func TestRun_LongPass_IsNoStall(t *testing.T) {
	t.Parallel()
	w := newBench(t, 40, 4)
	pass := celltest.NewLongPass(w.DB)
	c := newController(w.params)
	c.store.maps = slowEntries{w.Entries.(fakeEntries), pass.Piece}
	require.Greater(t, pass.Run(t, c.run), 2*time.Minute)
}

// TestRun_ManyRows_ReportsProgress: a round with many rows and few writes reports its progress as well.
func TestRun_ManyRows_ReportsProgress(t *testing.T) {
	t.Parallel()
	w := newBench(t, 40, 4)
	c, marks := newController(w.params), 0
	c.alive = func() { marks++ }
	require.NoError(t, c.restore())
	defer c.in.close()
	rows := 40 + 40 + 41 + 40 // endpoints, policies, identities, identities of endpoints
	c.in.read(w.DB.ReadTxn(), statedb.NewWatchSet(), time.Now())
	require.GreaterOrEqual(t, marks, rows)
	marks = 0
	c.compile(w.DB.ReadTxn())
	require.GreaterOrEqual(t, marks, 40)
}

// watchedDumps are maps that call a function during each read of the verify job.
type (
	watchedNumbers struct {
		identityMap
		during func()
	}
	watchedClassDump struct {
		classMap
		during func()
	}
	watchedScan struct {
		entryMaps
		during func()
	}
)

func (w watchedNumbers) Dump() ([]uint64, error) { w.during(); return w.identityMap.Dump() }

func (w watchedClassDump) Dump() (map[uint32]policycompiler.Classes, error) {
	w.during()
	return w.classMap.Dump()
}

func (w watchedScan) Some(c *cursor, n int) (map[entryKey]policycompiler.Entry, bool, error) {
	w.during()
	return w.entryMaps.Some(c, n)
}

// TestVerify_Round_DoesNotWaitForAllPortions: a round that waits while the verify job reads the identities can begin before the job reads its last map. A
// goroutine that has waited for a mutex for a millisecond gets it at the next release but one, unless the processor is busy with others, so several runs may be
// necessary.
func TestVerify_Round_DoesNotWaitForAllPortions(t *testing.T) {
	t.Parallel()
	w := newBench(t, 1, 1)
	v := &verifier{controller: w.controller}
	const waits = 5 * time.Millisecond
	var began atomic.Bool
	ended, between := make(chan struct{}), false
	v.Numbers = watchedNumbers{v.Numbers, func() {
		go func() {
			defer close(ended)
			v.mu.Lock()
			defer v.mu.Unlock()
			began.Store(true)
		}()
		time.Sleep(waits)
		require.False(t, began.Load(), "the job does not hold mu while it reads")
	}}
	v.Classes = watchedClassDump{v.Classes, func() { time.Sleep(waits) }}
	v.Entries = watchedScan{v.Entries, func() { between = between || began.Load() }}
	require.Eventually(t, func() bool {
		began.Store(false)
		ended = make(chan struct{})
		err := v.run(t.Context())
		<-ended
		return err == nil && between
	}, 30*time.Second, time.Millisecond, "the round waits for all portions")
}

// TestVerify_LongRound_IsNoStall: the verify job waits for a long round, and the watchdog does not report the wait as a stall.
func TestVerify_LongRound_IsNoStall(t *testing.T) {
	t.Parallel()
	w, m := newBench(t, 1, 1), watchdog.NewMonitor()
	v := &verifier{controller: w.controller}
	ctx, end := watchdog.Begin(t.Context(), watchdog.NewGroup(nil, m, cell.FullModuleID{"policy"}), "verify-policies")
	defer end()
	v.mu.Lock()
	done := make(chan error)
	go func() { done <- v.run(ctx) }()
	steps := 0
	require.Eventually(t, func() bool {
		steps++
		return len(m.Step(2*time.Second, w.DB.ReadTxn())) == 0 && steps > 60
	}, 30*time.Second, time.Millisecond)
	v.mu.Unlock()
	require.NoError(t, <-done)
}

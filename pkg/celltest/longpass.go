package celltest

import (
	"context"
	"testing"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/watchdog"
)

// LongPass runs one pass of a controller in which each piece takes two seconds of a monitor's time.
type LongPass struct {
	db      *statedb.DB
	monitor *watchdog.Monitor
	took    time.Duration
	stalls  []watchdog.Stall
}

// NewLongPass returns a LongPass for a controller that writes to db.
func NewLongPass(db *statedb.DB) *LongPass { return &LongPass{db: db, monitor: watchdog.NewMonitor()} }

// Piece advances the monitor's time by one piece. Fakes of the controller's outputs call it.
func (p *LongPass) Piece() {
	const each = 2 * time.Second
	p.took += each
	if now := p.monitor.Step(each, p.db.ReadTxn()); len(now) > 0 {
		p.stalls = now
	}
}

// Run fails the test if the monitor reports the first pass of run as a stall, and returns the monitor's time of the pass.
func (p *LongPass) Run(t testing.TB, run func(context.Context, cell.Health) error) time.Duration {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // after the first pass
	ctx, end := watchdog.Begin(ctx, watchdog.NewGroup(nil, p.monitor, cell.FullModuleID{"under-test"}), "run")
	defer end()
	health, _ := cell.NewSimpleHealth()
	require.NoError(t, run(ctx, health))
	require.Empty(t, p.stalls)
	return p.took
}

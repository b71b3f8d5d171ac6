package celltest

import (
	"context"
	"testing"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/heartbeat"
)

// LongPass is one pass of a controller on a machine where each of its pieces takes two seconds of a monitor's time.
type LongPass struct {
	db      *statedb.DB
	monitor *heartbeat.Monitor
	took    time.Duration
	wedges  []heartbeat.Wedge
}

// NewLongPass makes one of a controller that writes to db.
func NewLongPass(db *statedb.DB) *LongPass { return &LongPass{db: db, monitor: heartbeat.NewMonitor()} }

// Piece has the time of one piece pass. Fakes of what the controller writes to call it.
func (p *LongPass) Piece() {
	const each = 2 * time.Second
	p.took += each
	if now := p.monitor.Step(each, p.db.ReadTxn()); len(now) > 0 {
		p.wedges = now
	}
}

// Run wants the first pass of run not to be taken for one that hangs, and returns how long it took.
func (p *LongPass) Run(t testing.TB, run func(context.Context, cell.Health) error) time.Duration {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // after the first pass
	ctx, end := heartbeat.Begin(ctx, heartbeat.NewGroup(nil, p.monitor, cell.FullModuleID{"under-test"}), "run")
	defer end()
	health, _ := cell.NewSimpleHealth()
	require.NoError(t, run(ctx, health))
	require.Empty(t, p.wedges)
	return p.took
}

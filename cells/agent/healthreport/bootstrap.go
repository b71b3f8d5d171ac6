package healthreport

import (
	"context"
	"fmt"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/bootlog"
	"github.com/waggle-net/waggle/pkg/tables/health"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// settle is the debounce interval that puts consecutive start hooks into one commit.
const settle = 50 * time.Millisecond

type bootstrapParams struct {
	cell.In

	DB       *statedb.DB
	Table    statedb.RWTable[health.Hook]
	Jobs     job.Group
	Recorder *bootlog.Recorder `optional:"true"` // created with the root logger, before the hive; nil in tests of other cells
}

// registerBootstrap adds a job that moves recorded hooks into the table. The job runs until the agent ends, because later start hooks are recorded
// after its start.
func registerBootstrap(p bootstrapParams) {
	if p.Recorder == nil {
		return
	}
	watchdog.AddRetried(p.Jobs, "record-hooks", func(ctx context.Context, health cell.Health) error {
		for order := 1; ; {
			watchdog.Idle(ctx)
			select {
			case <-ctx.Done():
				return nil
			case <-p.Recorder.Recorded():
			}
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(settle):
			}
			watchdog.Busy(ctx)
			hooks := p.Recorder.Take()
			if err := insertHooks(p.DB, p.Table, hooks, order); err != nil {
				return err
			}
			order += len(hooks)
			health.OK(fmt.Sprintf("%d start hooks", order-1))
		}
	}, time.Second, time.Second)
}

func insertHooks(db *statedb.DB, table statedb.RWTable[health.Hook], hooks []bootlog.Hook, order int) error {
	txn := db.WriteTxn(table)
	defer txn.Abort()
	for i, h := range hooks {
		row := health.Hook{Order: order + i, Hook: h.Name, Detail: h.Detail, Module: h.Module, Start: h.Start, Duration: h.Duration}
		if _, _, err := table.Insert(txn, row); err != nil {
			return fmt.Errorf("insert hook %s: %w", h.Name, err)
		}
	}
	txn.Commit()
	return nil
}

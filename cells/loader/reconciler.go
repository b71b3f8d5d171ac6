package loader

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"golang.org/x/time/rate"

	"github.com/waggle-net/waggle/pkg/drift"
	"github.com/waggle-net/waggle/pkg/tables/attachments"
	"github.com/waggle-net/waggle/pkg/tc"
)

const (
	pruneInterval  = 30 * time.Minute // stale pins are rare: a device of ours that went for good
	verifyInterval = 30 * time.Second // how long a filter that somebody removed may be missing; the nft rule covers it
	minRetry       = 100 * time.Millisecond
	maxRetry       = time.Minute
	roundSize      = 32 // attachments between two commits of statuses: each takes about a millisecond, and an ADD waits
)

func registerReconciler(params reconciler.Params, table statedb.RWTable[*attachments.Attachment], o *ops) error {
	_, err := reconciler.Register(params, table,
		(*attachments.Attachment).Clone, (*attachments.Attachment).WithStatus, (*attachments.Attachment).GetStatus, o, nil,
		reconciler.WithName("attachments"),
		reconciler.WithPruning(pruneInterval),
		reconciler.WithRefreshing(0, nil), // the verify job marks what differs; nothing else needs a second look
		reconciler.WithRetry(minRetry, maxRetry),
		reconciler.WithRoundLimits(roundSize, rate.NewLimiter(rate.Inf, 1)), // no wait: an ADD may be in the table
	)
	if err != nil {
		return err
	}
	params.JobGroup.Add(job.Timer("verify-attachments", func(context.Context) error {
		return o.verify(params.DB, table)
	}, verifyInterval))
	params.JobGroup.Add(job.OneShot("follow-removals", func(ctx context.Context, health cell.Health) error {
		return o.followRemovals(ctx, health, params.DB, table)
	}))
	return nil
}

// followRemovals repairs at once what verify would find later. The qdisc of a link that goes is announced as well; its
// row is gone by then.
func (o *ops) followRemovals(ctx context.Context, health cell.Health, db *statedb.DB, table statedb.RWTable[*attachments.Attachment]) error {
	health.OK("Listening")
	for {
		gone, err := o.kernel.Pods.Removed(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, tc.ErrLost):
			err = o.verify(db, table)
		}
		if err != nil {
			health.Degraded("A qdisc that somebody removes is found every half minute only", err)
			return nil
		}
		drift.Mark(db, table, db.ReadTxn(), func(a *attachments.Attachment) bool {
			return (a.Kind == attachments.PodLink || a.Kind == attachments.Hold) && slices.Contains(gone, a.IfIndex)
		})
	}
}

// verify reads the kernel back and marks the rows that it no longer agrees with.
func (o *ops) verify(db *statedb.DB, table statedb.RWTable[*attachments.Attachment]) error {
	before := db.ReadTxn()
	seen, err1 := o.kernel.Pods.Observe()
	attached, err2 := o.kernel.Devices.Attached()
	if err := errors.Join(err1, err2); err != nil {
		return fmt.Errorf("verify attachments: %w", err)
	}
	drift.Mark(db, table, before, func(a *attachments.Attachment) bool { return o.differs(a, seen, attached) })
	return nil
}

func (o *ops) differs(a *attachments.Attachment, seen observed, attached map[string]uint32) bool {
	runs := func(id uint32, found bool) bool {
		p := o.generation.program(a.Program)
		return found && (p == nil || p.ID == id)
	}
	switch a.Kind {
	case attachments.Hold:
		return !seen.Guard || seen.Blocks[a.IfIndex] != blocks()
	case attachments.PodLink:
		return seen.Blocks[a.IfIndex] != blocks()
	case attachments.Block:
		id, found := seen.Filters[uint32(a.IfIndex)]
		return !runs(id, found)
	case attachments.TCX:
		id, found := attached[pinName(a)]
		return !runs(id, found)
	}
	return false
}

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
	"github.com/waggle-net/waggle/pkg/heartbeat"
	"github.com/waggle-net/waggle/pkg/nftguard"
	"github.com/waggle-net/waggle/pkg/tables/attachments"
	"github.com/waggle-net/waggle/pkg/tables/driftrepairs"
	"github.com/waggle-net/waggle/pkg/tc"
)

const (
	pruneInterval = 30 * time.Minute // stale pins are rare: a device of ours that went for good
	minRetry      = 100 * time.Millisecond
	maxRetry      = time.Minute
	roundSize     = 32 // attachments between two commits of statuses: each takes about a millisecond, and an ADD waits
)

func registerReconciler(params reconciler.Params, table statedb.RWTable[*attachments.Attachment], o *ops, w drift.Watch) error {
	_, err := heartbeat.Register(params, table,
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
	params.JobGroup.Add(job.Timer("verify-attachments", heartbeat.Timer(params.JobGroup, "verify-attachments", func(context.Context) error {
		return o.verify(w, table)
	}, w.Interval), w.Interval))
	params.JobGroup.Add(job.OneShot("follow-removals", heartbeat.Loop(params.JobGroup, "follow-removals", func(ctx context.Context, health cell.Health) error {
		return o.followRemovals(ctx, health, w, table)
	})))
	return nil
}

// followRemovals repairs at once what verify would find later. The qdisc of a link that goes is announced as well; its
// row is gone by then.
func (o *ops) followRemovals(ctx context.Context, health cell.Health, w drift.Watch, table statedb.RWTable[*attachments.Attachment]) error {
	health.OK("Listening")
	for {
		heartbeat.Idle(ctx)
		gone, err := o.kernel.Pods.Removed(ctx)
		heartbeat.Busy(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, tc.ErrLost):
			err = o.verify(w, table)
		}
		if err != nil {
			health.Degraded("A qdisc that somebody removes is found every half minute only", err)
			return nil
		}
		drift.Mark(w, table, w.DB.ReadTxn(), func(a *attachments.Attachment) []driftrepairs.Finding {
			return drift.If((a.Kind == attachments.PodLink || a.Kind == attachments.Hold) && slices.Contains(gone, a.IfIndex),
				driftrepairs.Clsact, a.Device, "missing")
		})
	}
}

// verify reads the kernel back and marks the rows that it no longer agrees with.
func (o *ops) verify(w drift.Watch, table statedb.RWTable[*attachments.Attachment]) error {
	before := w.DB.ReadTxn()
	seen, err1 := o.kernel.Pods.Observe()
	attached, err2 := o.kernel.Devices.Attached()
	if err := errors.Join(err1, err2); err != nil {
		return fmt.Errorf("verify attachments: %w", err)
	}
	drift.Mark(w, table, before, func(a *attachments.Attachment) []driftrepairs.Finding { return o.findings(a, seen, attached) })
	return nil
}

// findings compares one row with what was seen.
func (o *ops) findings(a *attachments.Attachment, seen observed, attached map[string]uint32) []driftrepairs.Finding {
	switch a.Kind {
	case attachments.Hold:
		return append(drift.If(!seen.Guard, driftrepairs.NFTRule, "inet "+nftguard.TableName, "missing or changed"),
			clsactFinding(a, seen)...)
	case attachments.PodLink:
		return clsactFinding(a, seen)
	case attachments.Block:
		id, found := seen.Filters[uint32(a.IfIndex)]
		return o.programFinding(driftrepairs.Filter, a, id, found)
	case attachments.TCX:
		id, found := attached[pinName(a)]
		return o.programFinding(driftrepairs.TCX, a, id, found)
	}
	return nil
}

func clsactFinding(a *attachments.Attachment, seen observed) []driftrepairs.Finding {
	have, found := seen.Blocks[a.IfIndex]
	if !found {
		return drift.If(true, driftrepairs.Clsact, a.Device, "missing")
	}
	return drift.If(have != blocks(), driftrepairs.Clsact, a.Device, "has other blocks")
}

// programFinding asks for the program of this run; without one, any program of ours is right.
func (o *ops) programFinding(kind driftrepairs.Kind, a *attachments.Attachment, id uint32, found bool) []driftrepairs.Finding {
	what := a.Device + " " + a.Hook
	if !found {
		return drift.If(true, kind, what, "missing")
	}
	return drift.If(a.ProgramID != 0 && a.ProgramID != id, kind, what, fmt.Sprintf("runs program %d", id))
}

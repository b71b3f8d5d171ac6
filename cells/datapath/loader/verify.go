package loader

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/datapath/nftguard"
	"github.com/waggle-net/waggle/pkg/datapath/rtnl"
	"github.com/waggle-net/waggle/pkg/datapath/tc"
	"github.com/waggle-net/waggle/pkg/drift"
	"github.com/waggle-net/waggle/pkg/tables/attachments"
	"github.com/waggle-net/waggle/pkg/tables/driftrepairs"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// maxNamed is the number of programs ahead of Waggle's that the health names.
const maxNamed = 5

// verifier compares the kernel with the rows.
type verifier struct {
	kernel kernel
	watch  drift.Watch
	table  statedb.RWTable[*attachments.Attachment]
	order  cell.Health
	guard  cell.Health
	steps  cell.Health
}

func newVerifier(k kernel, w drift.Watch, table statedb.RWTable[*attachments.Attachment], health cell.Health) *verifier {
	return &verifier{kernel: k, watch: w, table: table, order: health.NewScope("program-order"),
		guard: health.NewScope("nft-rule"), steps: health.NewScope("steps")}
}

// registerVerify adds the jobs that verify on a timer, and whenever the kernel announces a change that may concern a row.
func registerVerify(jobs job.Group, v *verifier) {
	watchdog.AddTimer(jobs, "verify-attachments", func(context.Context) error {
		_, err := v.look()
		return err
	}, v.watch.Interval)
	for name, next := range map[string]func(context.Context) error{
		"follow-filters": v.filtersChanged, "follow-rule": v.kernel.Pods.RuleChanged, "follow-pins": v.kernel.Devices.PinsChanged} {
		watchdog.Add(jobs, name, func(ctx context.Context, health cell.Health) error {
			return drift.Follow(ctx, health, next, v.look)
		})
	}
}

// filtersChanged waits until a clsact or a filter of Waggle changes. The kernel also announces the qdisc of a deleted link, whose row has been deleted by then.
func (v *verifier) filtersChanged(ctx context.Context) error {
	for {
		changes, err := v.kernel.Pods.Changed(ctx)
		if errors.Is(err, rtnl.ErrLost) {
			return nil
		}
		if err != nil {
			return err
		}
		for a := range v.table.All(v.watch.DB.ReadTxn()) {
			if slices.ContainsFunc(changes, func(c tc.Change) bool { return concerns(c, a) }) {
				return nil
			}
		}
	}
}

func concerns(c tc.Change, a *attachments.Attachment) bool {
	switch a.Kind {
	case attachments.Block:
		return c.Block == uint32(a.IfIndex)
	case attachments.TCX: // a filter may replace the tcx link
		return c.Ifindex == a.IfIndex
	}
	return c.Clsact && c.Ifindex == a.IfIndex
}

// look reads the state of the kernel and marks rows pending that differ from it.
func (v *verifier) look() (again bool, err error) {
	before := v.watch.DB.ReadTxn()
	seen, err1 := v.kernel.Pods.Observe()
	links, err2 := v.kernel.Devices.Attached()
	if err := errors.Join(err1, err2); err != nil {
		return false, fmt.Errorf("verify attachments: %w", err)
	}
	groups := v.kernel.Devices.Groups(groupsOf(v.table.All(before)))
	reportGuard(v.guard, seen)
	reportSteps(v.steps, v.table.All(before), seen)
	again = drift.Mark(v.watch, v.table, before, func(a *attachments.Attachment) []driftrepairs.Finding {
		return findings(a, seen, links, groups)
	})
	return again, v.reportOrder(before, seen)
}

// findings compares one row with the observed state.
func findings(a *attachments.Attachment, seen observed, links map[string]attached, groups map[string]uint64) []driftrepairs.Finding {
	what := a.Device + " " + a.Hook
	switch a.Kind {
	case attachments.Hold:
		return append(drift.If(!seen.Guard, driftrepairs.NFTRule, "inet "+nftguard.TableName, "missing or changed"),
			clsactFinding(a, seen)...)
	case attachments.PodLink:
		return clsactFinding(a, seen)
	case attachments.Block:
		id, found := seen.Filters[uint32(a.IfIndex)]
		return append(programFinding(driftrepairs.Filter, what, a.ProgramID, id, found),
			drift.If(repairable(unpinned(a, seen)), driftrepairs.Filter, what, "the pin of its steps is missing")...)
	case attachments.CGroup:
		l, found := links[pinName(a)]
		id, exists := groups[a.Device]
		return programFinding(driftrepairs.CGroup, what, a.ProgramID, l.Program, found && exists && l.Group == id)
	case attachments.TCX:
		l, found := links[pinName(a)]
		all := programFinding(driftrepairs.TCX, what, a.ProgramID, l.Program, found && l.IfIndex == a.IfIndex)
		if a.ProgramID == 0 || attachPointOf(a).Shared {
			return all // a move requires a program of this run, and a hook that is not shared
		}
		for _, other := range l.Ahead {
			all = append(all, driftrepairs.Finding{Kind: driftrepairs.ProgramOrder, What: what, Found: other + " is ahead"})
		}
		return all
	}
	return nil
}

// repairable reports whether a pin is missing that can be created.
func repairable(unpinned error) bool { return unpinned != nil && !errors.Is(unpinned, unix.EROFS) }

func clsactFinding(a *attachments.Attachment, seen observed) []driftrepairs.Finding {
	have, found := seen.Blocks[a.IfIndex]
	if !found {
		return drift.If(true, driftrepairs.Clsact, a.Device, "missing")
	}
	return drift.If(have != blocks(), driftrepairs.Clsact, a.Device, "has other blocks")
}

// programFinding compares the program on a hook with the program of the row. If the row names no program, any program of Waggle is right.
func programFinding(kind driftrepairs.Kind, what string, want, have uint32, found bool) []driftrepairs.Finding {
	if !found {
		return drift.If(true, kind, what, "missing")
	}
	return drift.If(want != 0 && want != have, kind, what, fmt.Sprintf("runs program %d", have))
}

// reportOrder reports foreign programs that process the packets of pods before Waggle's programs. Only a detach of the foreign programs would change the order,
// so the health names them instead.
func (v *verifier) reportOrder(before statedb.ReadTxn, seen observed) error {
	ahead := slices.Clone(seen.Ahead)
	var errs []error
	for a := range v.table.All(before) {
		if a.Kind != attachments.PodLink || a.Status.Kind != reconciler.StatusKindDone {
			continue
		}
		programs, err := v.kernel.Devices.Ahead(a.IfIndex)
		errs = append(errs, err)
		for _, p := range programs {
			ahead = append(ahead, a.Device+": "+p)
		}
	}
	if len(ahead) == 0 {
		v.order.OK("no foreign program runs ahead of the agent's")
		return errors.Join(errs...)
	}
	var named []error
	for _, a := range ahead[:min(len(ahead), maxNamed)] {
		named = append(named, errors.New(a))
	}
	v.order.Degraded(fmt.Sprintf("%d foreign programs see packets of pods before the agent's programs: they may forward packets that those would drop",
		len(ahead)), errors.Join(named...))
	return errors.Join(errs...)
}

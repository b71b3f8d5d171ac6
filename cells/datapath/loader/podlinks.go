package loader

import (
	"context"
	"fmt"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/changefeed"
	"github.com/waggle-net/waggle/pkg/drift"
	"github.com/waggle-net/waggle/pkg/loop"
	"github.com/waggle-net/waggle/pkg/podlink"
	"github.com/waggle-net/waggle/pkg/tables/attachments"
	"github.com/waggle-net/waggle/pkg/tables/devices"
	"github.com/waggle-net/waggle/pkg/tables/driftrepairs"
	"github.com/waggle-net/waggle/pkg/tables/podmtus"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// pause is the minimum time between two checks; the first check after a pause does not wait.
const pause = 20 * time.Millisecond

// linkWatch finds pod links that another program sets down, renames, or gives another group or MTU.
type linkWatch struct {
	cell.In

	Drift   drift.Watch
	Table   statedb.RWTable[*attachments.Attachment]
	Devices statedb.Table[*devices.Device]
	MTUs    statedb.Table[podmtus.PodMTU]
}

func registerLinks(jobs job.Group, w linkWatch) {
	watchdog.Add(jobs, "repair-pod-links", w.run)
}

// known is the state of the checks that is not in the tables.
type known struct {
	suspects map[int]bool // by ifindex: changed links that have not been checked yet
	mtus     map[int]int  // by ifindex: the MTU at the first check of a link, or a later MTU from the cell podmtu
}

func (w linkWatch) run(ctx context.Context, health cell.Health) error {
	txn := w.Drift.DB.WriteTxn(w.Devices)
	feed, err := changefeed.Follow(txn, w.Devices)
	txn.Commit()
	if err != nil {
		return err
	}
	defer feed.Close()
	k := known{map[int]bool{}, map[int]int{}}
	return loop.Run(ctx, w.Drift.DB, loop.Options{Pause: pause}, func(r *loop.Round) error {
		for _, e := range feed.UpTo(r.Txn, r.Changed) {
			k.note(e.Object, e.Deleted)
		}
		if len(k.suspects) > 0 {
			r.Watch(w.Table)
			if w.checkSuspects(r.Txn, k, time.Now()) {
				r.Within(drift.Grace)
			}
		}
		health.OK("links of pods are unchanged")
		return nil
	})
}

// note records a change of a device. It recognizes a renamed and regrouped link by its index.
func (k known) note(d *devices.Device, gone bool) {
	_, joined := k.mtus[d.Index]
	switch {
	case gone:
		delete(k.suspects, d.Index)
		delete(k.mtus, d.Index)
	case joined || d.Group == podlink.Group || podlink.IsHostName(d.Name):
		k.suspects[d.Index] = true
	}
}

// checkSuspects checks each suspect whose row is Done, marks links that differ and forgets the others. It reports whether to check again after the grace period.
func (w linkWatch) checkSuspects(txn statedb.ReadTxn, k known, now time.Time) (later bool) {
	rows := make(map[int]*attachments.Attachment)
	for row := range w.Table.All(txn) {
		if row.Kind == attachments.PodLink && k.suspects[row.IfIndex] {
			rows[row.IfIndex] = row
		}
	}
	found := make(map[int][]driftrepairs.Finding)
	outdated := false // a row has an MTU that the agent has changed since
	for index := range k.suspects {
		row, d := rows[index], w.device(txn, index)
		switch {
		case row == nil || d == nil || d.Group == podlink.DeletedGroup: // of no endpoint, or being deleted
			delete(k.suspects, index)
		case row.Status.Kind != reconciler.StatusKindDone: // checked when it is Done
		case now.Sub(row.Status.UpdatedAt) < drift.Grace:
			later = true
		default:
			if _, recorded := k.mtus[index]; !recorded {
				k.mtus[index] = d.MTU
			}
			if given, _, _ := w.MTUs.Get(txn, podmtus.ByID(row.EndpointID)); given.HostMTU != 0 && given.HostIfIndex == index &&
				d.MTU != k.mtus[index] { // otherwise the change to the MTU of the row may not be observed yet
				k.mtus[index] = given.HostMTU
			}
			outdated = outdated || row.MTU != 0 && row.MTU != k.mtus[index]
			if all := k.findings(row, d); len(all) > 0 {
				found[index] = all
				continue
			}
			delete(k.suspects, index)
		}
	}
	if outdated || len(found) > 0 {
		w.mark(k, found)
	}
	return later
}

func (w linkWatch) device(txn statedb.ReadTxn, index int) *devices.Device {
	d, _, _ := w.Devices.Get(txn, devices.ByIndex(index))
	return d
}

// findings returns the differences between the observed link and its row.
func (k known) findings(row *attachments.Attachment, d *devices.Device) (all []driftrepairs.Finding) {
	add := func(wrong bool, found string) {
		all = append(all, drift.If(wrong, driftrepairs.Link, row.Device, found)...)
	}
	mtu := k.mtus[d.Index]
	add(d.Name != row.Device, "is named "+d.Name)
	add(!d.Up, "down")
	add(d.Group != podlink.Group, fmt.Sprintf("in group %#x", d.Group))
	add(d.Flags&unix.IFF_NOARP == 0, "resolves addresses")
	add(d.MTU != mtu, fmt.Sprintf("has MTU %d", d.MTU))
	return all
}

// mark writes the MTUs, which only this job knows, to the rows, and marks rows with findings pending.
func (w linkWatch) mark(k known, found map[int][]driftrepairs.Finding) {
	wtxn := w.Drift.DB.WriteTxn(w.Table)
	for row, revision := range w.Table.All(wtxn) {
		changed := row.MTU != 0 || len(found[row.IfIndex]) > 0
		if mtu := k.mtus[row.IfIndex]; changed && row.Kind == attachments.PodLink && mtu != 0 && row.MTU != mtu {
			c := row.Clone()
			c.MTU = mtu
			_, _, _ = w.Table.CompareAndSwap(wtxn, revision, c)
		}
	}
	wtxn.Commit()
	drift.Mark(w.Drift, w.Table, w.Drift.DB.ReadTxn(), func(row *attachments.Attachment) []driftrepairs.Finding {
		if row.Kind != attachments.PodLink {
			return nil
		}
		return found[row.IfIndex]
	})
}

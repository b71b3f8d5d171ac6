package overlay

import (
	"context"
	"fmt"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/drift"
	"github.com/waggle-net/waggle/pkg/podlink"
	"github.com/waggle-net/waggle/pkg/tables/devices"
	"github.com/waggle-net/waggle/pkg/tables/driftrepairs"
	"github.com/waggle-net/waggle/pkg/tables/overlays"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// repair compares the row with the observed device and marks the row pending when they differ.
type repair struct {
	cell.In
	Drift   drift.Watch
	Table   statedb.RWTable[*overlays.Overlay]
	Devices statedb.Table[*devices.Device]
}

func registerRepair(jobs job.Group, r repair) {
	watchdog.Add(jobs, "repair-tunnel", r.run)
}

func (r *repair) run(ctx context.Context, health cell.Health) error {
	return drift.Compare(ctx, r.Drift, func(txn statedb.ReadTxn) (recheck time.Duration) {
		if ok, _ := r.Devices.Initialized(txn); ok {
			recheck = r.mark(txn, time.Now())
		}
		health.OK("the tunnel device is up to date")
		return recheck
	}, r.Table, r.Devices)
}

// mark returns the delay of the next check, 0 to wait for a change.
func (r *repair) mark(txn statedb.ReadTxn, now time.Time) (recheck time.Duration) {
	drift.Mark(r.Drift, r.Table, txn, func(row *overlays.Overlay) []driftrepairs.Finding {
		var d *devices.Device
		for d = range r.Devices.List(txn, devices.ByName(row.Device)) {
			break
		}
		wrong := difference(row, d)
		if wrong == "" && row.Checksums {
			wrong = r.pairDifference(txn, row)
		}
		if age := now.Sub(row.Status.UpdatedAt); wrong != "" && age < drift.Grace {
			recheck = drift.Grace - age
			return nil
		}
		return drift.If(wrong != "", driftrepairs.Link, row.Device, wrong)
	})
	return recheck
}

// pairDifference describes how the pair that completes checksums differs from the row; "" when it does not.
func (r *repair) pairDifference(txn statedb.ReadTxn, row *overlays.Overlay) string {
	for _, name := range []string{podlink.ChecksumDevice, podlink.ChecksumPeer} {
		var d *devices.Device
		for d = range r.Devices.List(txn, devices.ByName(name)) {
			break
		}
		switch {
		case d == nil:
			return name + " missing"
		case row.ChecksumsUp && !d.Up:
			return name + " down"
		case row.MTU != 0 && d.MTU != row.MTU:
			return fmt.Sprintf("%s has MTU %d", name, d.MTU)
		}
	}
	return ""
}

// difference describes how the device differs from the row; "" when it does not.
func difference(row *overlays.Overlay, d *devices.Device) string {
	switch {
	case d == nil:
		return "missing"
	case row.Up && !d.Up:
		return "down"
	case d.Group != podlink.OverlayGroup:
		return fmt.Sprintf("in group %#x", d.Group)
	case d.MAC != row.MAC:
		return "has MAC " + d.MAC.String()
	case row.MTU != 0 && d.MTU != row.MTU:
		return fmt.Sprintf("has MTU %d", d.MTU)
	}
	return ""
}

package basedevices

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/drift"
	"github.com/waggle-net/waggle/pkg/tables/desireddevices"
	"github.com/waggle-net/waggle/pkg/tables/devices"
	"github.com/waggle-net/waggle/pkg/tables/driftrepairs"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// repair compares desired devices with observed ones and marks rows pending that differ.
type repair struct {
	cell.In
	Drift     drift.Watch
	Table     statedb.RWTable[*desireddevices.Device]
	Devices   statedb.Table[*devices.Device]
	Addresses statedb.Table[devices.Address]
}

func registerRepair(jobs job.Group, r repair) {
	watchdog.Add(jobs, "repair-devices", r.run)
}

func (r *repair) run(ctx context.Context, health cell.Health) error {
	return drift.Compare(ctx, r.Drift, func(txn statedb.ReadTxn) time.Duration {
		recheck := r.mark(txn, time.Now())
		health.OK("devices match the desired state")
		return recheck
	}, r.Table, r.Devices, r.Addresses)
}

// mark marks rows pending that are done but differ from the observed state. It returns the time until the next check, 0 for none before a change.
func (r *repair) mark(txn statedb.ReadTxn, now time.Time) (recheck time.Duration) {
	if ok, _ := r.Devices.Initialized(txn); !ok {
		return 0
	}
	drift.Mark(r.Drift, r.Table, txn, func(row *desireddevices.Device) []driftrepairs.Finding {
		findings := r.findings(txn, row)
		if age := now.Sub(row.Status.UpdatedAt); len(findings) > 0 && age < drift.Grace {
			recheck = max(recheck, drift.Grace-age)
			return nil
		}
		return findings
	})
	return recheck
}

// findings returns the differences between a pair and its row.
func (r *repair) findings(txn statedb.ReadTxn, row *desireddevices.Device) (all []driftrepairs.Finding) {
	for _, name := range []string{row.Name, row.Peer} {
		d, _, found := r.Devices.Get(txn, devices.ByName(name))
		if wrong := difference(row, d, found); wrong != "" {
			all = append(all, driftrepairs.Finding{Kind: driftrepairs.Link, What: name, Found: wrong})
		}
		if !found {
			return all // its addresses were removed with it
		}
	}
	host, _, _ := r.Devices.Get(txn, devices.ByName(row.Name))
	var have []netip.Prefix
	for a := range r.Addresses.List(txn, devices.AddressByLink(host.Index)) {
		if a.Scope < linkScope {
			have = append(have, a.Prefix)
		}
	}
	for _, a := range row.Addresses {
		if !slices.Contains(have, a) {
			all = append(all, driftrepairs.Finding{Kind: driftrepairs.Address, What: a.String(), Found: "missing on " + row.Name})
		}
	}
	for _, a := range have {
		if row.AddressesKnown && !slices.Contains(row.Addresses, a) {
			all = append(all, driftrepairs.Finding{Kind: driftrepairs.Address, What: a.String(), Found: "is on " + row.Name})
		}
	}
	return all
}

// difference describes how one end differs from its row; empty when it does not.
func difference(row *desireddevices.Device, d *devices.Device, found bool) string {
	switch {
	case !found:
		return "missing"
	case d.Up && !row.Up:
		return "up"
	case !d.Up && row.Up:
		return "down"
	case d.Flags&unix.IFF_NOARP == 0:
		return "resolves addresses"
	case row.MTU != 0 && d.MTU != row.MTU:
		return fmt.Sprintf("has MTU %d", d.MTU)
	}
	return ""
}

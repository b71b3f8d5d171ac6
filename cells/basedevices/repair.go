package basedevices

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"golang.org/x/sys/unix"

	tables "github.com/waggle-net/waggle/pkg/tables/desireddevices"
	"github.com/waggle-net/waggle/pkg/tables/devices"
)

// grace is how long a row may be Done before what is observed counts: the observer lags a little behind the kernel.
const grace = 250 * time.Millisecond

// repair compares desired devices with observed ones and marks those that must be set up again.
type repair struct {
	cell.In
	DB        *statedb.DB
	Table     statedb.RWTable[*tables.Device]
	Devices   statedb.Table[*devices.Device]
	Addresses statedb.Table[devices.Address]
}

func registerRepair(jobs job.Group, r repair) {
	jobs.Add(job.OneShot("repair-devices", r.run))
}

func (r *repair) run(ctx context.Context, health cell.Health) error {
	for {
		txn := r.DB.ReadTxn()
		_, linksChanged := r.Devices.AllWatch(txn)
		_, addrsChanged := r.Addresses.AllWatch(txn)
		rows, recheck := r.broken(txn, time.Now())
		r.mark(rows)
		health.OK("Devices are as wanted")
		var later <-chan time.Time
		if recheck > 0 {
			later = time.After(recheck)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-linksChanged:
		case <-addrsChanged:
		case <-later:
		}
	}
}

// broken finds rows that are Done and do not look so. The second result is when to look again, 0 for not before a change.
func (r *repair) broken(txn statedb.ReadTxn, now time.Time) (rows []*tables.Device, recheck time.Duration) {
	if ok, _ := r.Devices.Initialized(txn); !ok {
		return nil, 0
	}
	for row := range r.Table.All(txn) {
		if row.Status.Kind != reconciler.StatusKindDone || r.intact(txn, row) {
			continue
		}
		if age := now.Sub(row.Status.UpdatedAt); age < grace {
			recheck = max(recheck, grace-age)
			continue
		}
		rows = append(rows, row)
	}
	return rows, recheck
}

// intact tells whether both ends of a pair are observed as they should be.
func (r *repair) intact(txn statedb.ReadTxn, row *tables.Device) bool {
	for _, name := range []string{row.Name, row.Peer} {
		d, _, found := r.Devices.Get(txn, devices.ByName(name))
		if !found || d.Up != row.Up || d.Flags&unix.IFF_NOARP == 0 || (row.MTU != 0 && d.MTU != row.MTU) {
			return false
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
			return false
		}
	}
	return !row.AddressesKnown || len(have) == len(row.Addresses)
}

// mark makes rows pending, unless they have changed since they were judged.
func (r *repair) mark(rows []*tables.Device) {
	if len(rows) == 0 {
		return
	}
	txn := r.DB.WriteTxn(r.Table)
	defer txn.Abort()
	for _, row := range rows {
		if now, _, found := r.Table.Get(txn, tables.ByName(row.Name)); found && now == row {
			if _, _, err := r.Table.Insert(txn, row.Clone().WithStatus(reconciler.StatusPending())); err != nil {
				return
			}
		}
	}
	txn.Commit()
}

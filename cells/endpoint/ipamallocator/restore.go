package ipamallocator

import (
	"errors"
	"net/netip"
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/ipam"
	"github.com/waggle-net/waggle/pkg/tables/ipamaddresses"
)

// restoreLedger restores the addresses of the ledger that no restored endpoint has. Allocations wait for their claim, and released addresses are quarantined,
// both for the full time from now. The caller must hold mu.
func (a *allocator) restoreLedger(txn statedb.WriteTxn) error {
	rows, notes, err := a.ledger.read()
	if err != nil {
		return err
	}
	now := time.Now()
	for _, row := range rows {
		if _, _, taken := a.table.Get(txn, ipamaddresses.ByAddr(row.Addr)); taken {
			continue
		}
		f := a.anyFamilyOf(row.Addr)
		queue, wait := f.quarantined, a.settings.quarantine
		if row.State == ipamaddresses.Allocated {
			queue, wait = f.unclaimed, ipam.ExpireAfter
		}
		if row.Pool == "" {
			row.Pool = a.settings.pool
		}
		row.Attachment, row.Since, row.Expiry = "", now, now.Add(wait)
		if _, _, err := a.table.Insert(txn, row); err != nil {
			return err
		}
		queue.push(row.Addr, row.Expiry)
	}
	return errors.Join(notes...)
}

// keepRow writes the file of one row before the request is answered. With an error no file remains.
func (a *allocator) keepRow(row address) error {
	err := a.ledger.write(row)
	if err != nil {
		return errors.Join(err, a.ledger.remove(row.Addr))
	}
	return nil
}

// forget removes the file of a free address. A file that cannot be removed only puts its address in quarantine again after a restart.
func (a *allocator) forget(addr netip.Addr) {
	if err := a.ledger.remove(addr); err != nil {
		a.log.Warn("A free address stays in the ledger", "address", addr, "error", err)
	}
}

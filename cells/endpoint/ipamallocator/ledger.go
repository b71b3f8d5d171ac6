package ipamallocator

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/statefile"
	"github.com/waggle-net/waggle/pkg/tables/ipamaddresses"
)

// ledger stores unclaimed and quarantined addresses on disk, one file each. After a restart the plugin that requested an address may still be using it, and
// packets to the previous pod of an address may still be in transit.
//
// A file is written before its address is returned, changed when the address is released, and removed when the address is free. It stays while an endpoint has
// the address: if the agent is killed between the removal of the endpoint's file and the release, the allocation is restored and expires like any unclaimed
// one. The endpoint's file is read first and takes precedence. Times are not used after a restart, because clocks can jump: every wait starts again.
type ledger struct{ store *statefile.Store }

func newLedger(s agentconfig.Agent) ledger {
	return ledger{statefile.New(filepath.Join(s.StateDir, "ipam", "addresses"), "ipam-address")}
}

const ledgerSuffix = ".json"

func ledgerName(addr netip.Addr) string { return addr.String() + ledgerSuffix }

// write stores a row that is allocated or in quarantine.
func (l ledger) write(row address) error { return l.store.Write(ledgerName(row.Addr), row) }

// remove deletes the file of a free address.
func (l ledger) remove(addr netip.Addr) error { return l.store.Remove(ledgerName(addr)) }

// read returns the rows that the previous run stored. A damaged file still gives an address by its name, and the address is returned in quarantine. Files with
// other names are moved to bad/. Notes has one error for each file of either kind.
func (l ledger) read() (rows []address, notes []error, err error) {
	if err := l.store.Open(); err != nil {
		return nil, nil, err
	}
	files, err := l.store.ReadAll()
	if err != nil {
		return nil, nil, err
	}
	for _, file := range files {
		name, _ := strings.CutSuffix(file.Name, ledgerSuffix)
		addr, err := netip.ParseAddr(name)
		if err != nil || ledgerName(addr) != file.Name || addr.Zone() != "" || addr.Is4In6() {
			movedTo, err := l.store.Quarantine(file.Name)
			notes = append(notes, fmt.Errorf("%s is not the file of an address; it is kept as %q: %w", file.Name, movedTo, orForeign(err)))
			continue
		}
		row, err := parseRow(file, addr)
		if err != nil {
			notes = append(notes, fmt.Errorf("%s is quarantined because its owner is unknown: %w", addr, err))
		}
		rows = append(rows, row)
	}
	return rows, notes, nil
}

func orForeign(err error) error {
	if err != nil {
		return err
	}
	return statefile.ErrForeign
}

// parseRow reads one file. With an error it returns a row in quarantine.
func parseRow(file statefile.File, addr netip.Addr) (row address, err error) {
	if err = file.Err; err == nil {
		err = json.Unmarshal(file.Document, &row)
	}
	known := row.State == ipamaddresses.Allocated || row.State == ipamaddresses.Quarantined
	if err == nil && (row.Addr != addr || row.Pool == "" || !known) {
		err = fmt.Errorf("%w: it holds %s, which is %q", statefile.ErrCorrupt, row.Addr, row.State)
	}
	if err != nil {
		return address{Addr: addr, State: ipamaddresses.Quarantined, Owner: "unknown"}, err
	}
	return row, nil
}

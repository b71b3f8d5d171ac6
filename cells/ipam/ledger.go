package ipam

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"

	agent "github.com/waggle-net/waggle/pkg/settings"
	"github.com/waggle-net/waggle/pkg/statefile"
	"github.com/waggle-net/waggle/pkg/tables/ipamaddresses"
)

// ledger keeps on disk which addresses were handed out or rest, one file each: after a restart the plugin that asked for one
// may still be at work with it, and a packet to the pod that had one may still be under way.
//
// A file is written before anybody hears of the address, changed when it is released, and removed when it is free. It
// stays while an endpoint has the address: should the endpoint's own file go and the release not follow, because the
// agent was killed in between, the allocation is found again and ends as any that nobody claims. The endpoint's file, read
// first, outweighs it. Times are not kept, for clocks jump: every wait begins again at a restart.
type ledger struct{ store *statefile.Store }

func newLedger(s agent.Agent) ledger {
	return ledger{statefile.New(filepath.Join(s.StateDir, "ipam", "addresses"), "ipam-address")}
}

const ledgerSuffix = ".json"

func ledgerName(addr netip.Addr) string { return addr.String() + ledgerSuffix }

// write keeps a row that is allocated or in quarantine.
func (l ledger) write(row address) error { return l.store.Write(ledgerName(row.Addr), row) }

// remove forgets an address that is free.
func (l ledger) remove(addr netip.Addr) error { return l.store.Remove(ledgerName(addr)) }

// read returns what an earlier run has kept. Of a file that cannot be trusted the name still says which address must rest.
// What is no file of ours is set aside; notes say so.
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
			aside, err := l.store.SetAside(file.Name)
			notes = append(notes, fmt.Errorf("%s is not the file of an address; it is kept as %q: %w", file.Name, aside, orForeign(err)))
			continue
		}
		row, err := parseRow(file, addr)
		if err != nil {
			notes = append(notes, fmt.Errorf("%s rests, for nobody knows who had it: %w", addr, err))
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

// parseRow reads one file; with an error it returns a row that rests.
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

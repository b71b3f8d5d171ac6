package servicecontroller

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/loadbalancer"
	"github.com/waggle-net/waggle/pkg/statefile"
	"github.com/waggle-net/waggle/pkg/tables/frontends"
)

// holders stores the owners of addresses that other namespaces claim too, one file for each address, so that an owner keeps its address over a restart. It is
// for one goroutine.
type holders struct {
	files    *statefile.Store
	log      *slog.Logger
	previous map[loadbalancer.Address]string // owners of the previous run; nil when the tables are complete
	onFile   map[loadbalancer.Address]string
	dirty    map[loadbalancer.Address]bool // the file may differ from the tables
}

// maxHolders is the maximum number of files: tenants choose the number of conflicts, and the directory is in memory. For further addresses the age of the
// objects decides after a restart.
const maxHolders = 4096

// holding is the content of a file.
type holding struct {
	Address loadbalancer.Address `json:"address"`
	Service string               `json:"service"`
}

func newHolders(s agentconfig.Agent, log *slog.Logger) *holders {
	return &holders{files: statefile.New(filepath.Join(s.StateDir, "service-holders"), "service-holder"), log: log,
		onFile: map[loadbalancer.Address]string{}, dirty: map[loadbalancer.Address]bool{}}
}

// name returns the name of the file of an address, for example "192.0.2.1:80-TCP".
func (h holding) name() string { return strings.ReplaceAll(h.Address.String(), "/", "-") }

// load reads the files of the previous run. An invalid file is quarantined, and the age of the objects decides about its address.
func (h *holders) load() {
	if _, err := os.Stat(h.files.Dir()); err == nil {
		if err := h.files.Open(); err != nil {
			h.log.Warn("Cannot remove temporary files of interrupted writes of service address owners", "error", err)
		}
	}
	files, err := h.files.ReadAll()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		h.log.Warn("Files of service address owners cannot be read; the owners of contested addresses may change", "error", err)
	}
	for _, f := range files {
		var one holding
		if f.Err == nil {
			f.Err = json.Unmarshal(f.Document, &one)
		}
		if f.Err == nil && (f.Name != one.name() || one.Service == "") {
			f.Err = fmt.Errorf("%w: it is for %s of %q", statefile.ErrCorrupt, one.Address, one.Service)
		}
		if f.Err != nil {
			quarantined, err := h.files.Quarantine(f.Name)
			h.log.Warn("A file of a service address owner cannot be used; the owner of the address may change", "file", f.Name, "keptAs", quarantined,
				"error", errors.Join(f.Err, err))
			continue
		}
		h.onFile[one.Address] = one.Service
	}
	h.previous = maps.Clone(h.onFile)
}

// settle drops the owners of the previous run when the tables are complete, and marks all files as dirty.
func (h *holders) settle() {
	for a := range h.onFile {
		h.dirty[a] = true
	}
	h.previous = nil
}

// left marks the file of an address that no longer has an owner.
func (h *holders) left(a loadbalancer.Address) {
	if h.onFile[a] != "" {
		h.dirty[a] = true
	}
}

// keep updates the files from the tables. Until the tables are complete the files stay unchanged. A file stays while the owner is the same, even when no other
// namespace claims the address any longer: a service that repeatedly adds and removes its claim must not get the address because of a restart in between.
func (h *holders) keep(txn statedb.ReadTxn, c *controller) error {
	if h.previous != nil {
		return nil
	}
	var errs []error
	for a := range h.dirty {
		row := c.frontend(txn, a)
		var err error
		switch has := h.onFile[a]; {
		case row != nil && has == row.Service:
		case row != nil && has == "" && len(h.onFile) >= maxHolders:
		case row != nil && claimedByOtherNamespace(row):
			if err = h.files.Write(holding{Address: a}.name(), holding{a, row.Service}); err == nil {
				h.onFile[a] = row.Service
			}
		case has != "":
			if err = h.files.Remove(holding{Address: a}.name()); err == nil {
				delete(h.onFile, a)
			}
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		delete(h.dirty, a)
		c.alive()
	}
	return errors.Join(errs[:min(len(errs), maxProblems)]...)
}

// claimedByOtherNamespace reports whether a service of another namespace claims the address of a frontend. Within a namespace the age of the objects decides.
func claimedByOtherNamespace(row *frontends.Frontend) bool {
	own := namespaceOf(row.Service)
	return slices.ContainsFunc(row.Refused, func(name string) bool { return namespaceOf(name) != own })
}

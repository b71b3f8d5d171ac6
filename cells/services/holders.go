package services

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

	"github.com/waggle-net/waggle/pkg/loadbalancer"
	"github.com/waggle-net/waggle/pkg/settings"
	"github.com/waggle-net/waggle/pkg/statefile"
	"github.com/waggle-net/waggle/pkg/tables/frontends"
)

// holders keep in a file each who has an address that others have claimed as well, so that it has it after a restart too. They belong to one goroutine.
type holders struct {
	files   *statefile.Store
	log     *slog.Logger
	earlier map[loadbalancer.Address]string // of the run before, until the tables are complete
	onFile  map[loadbalancer.Address]string
	dirty   map[loadbalancer.Address]bool // the file may say something else than the tables
}

// maxHolders bounds how many files there are: tenants choose how many addresses they contend for, and the directory is in memory.
// Age decides about further ones after a restart.
const maxHolders = 4096

// holding is what a file says.
type holding struct {
	Address loadbalancer.Address `json:"address"`
	Service string               `json:"service"`
}

func newHolders(s settings.Agent, log *slog.Logger) *holders {
	return &holders{files: statefile.New(filepath.Join(s.StateDir, "service-holders"), "service-holder"), log: log,
		onFile: map[loadbalancer.Address]string{}, dirty: map[loadbalancer.Address]bool{}}
}

// name of the file of an address: "192.0.2.1:80-TCP".
func (h holding) name() string { return strings.ReplaceAll(h.Address.String(), "/", "-") }

// load reads what the run before has left. A file that cannot be used is set aside: age decides about its address.
func (h *holders) load() {
	if _, err := os.Stat(h.files.Dir()); err == nil {
		if err := h.files.Open(); err != nil {
			h.log.Warn("What interrupted writes of files of addresses of services have left cannot be removed", "error", err)
		}
	}
	files, err := h.files.ReadAll()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		h.log.Warn("Files of addresses of services cannot be read; who has one that several claim may change", "error", err)
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
			aside, err := h.files.SetAside(f.Name)
			h.log.Warn("A file of an address of services cannot be used; who has the address may change", "file", f.Name, "keptAs", aside,
				"error", errors.Join(f.Err, err))
			continue
		}
		h.onFile[one.Address] = one.Service
	}
	h.earlier = maps.Clone(h.onFile)
}

// settle forgets the run before: the tables are complete.
func (h *holders) settle() {
	for a := range h.onFile {
		h.dirty[a] = true
	}
	h.earlier = nil
}

// left notes that an address has no owner any more.
func (h *holders) left(a loadbalancer.Address) {
	if h.onFile[a] != "" {
		h.dirty[a] = true
	}
}

// keep makes the files say what the tables do. An address stays on file when nobody else claims it any more, as long as it has the same owner: who
// claims it by turns shall not find a moment between two runs. Until the tables are complete the files stay as they are.
func (h *holders) keep(txn statedb.ReadTxn, c *controller) error {
	if h.earlier != nil {
		return nil
	}
	var errs []error
	for a := range h.dirty {
		row := c.frontend(txn, a)
		var err error
		switch has := h.onFile[a]; {
		case row != nil && has == row.Service:
		case row != nil && has == "" && len(h.onFile) >= maxHolders:
		case row != nil && wantedElsewhere(row):
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

// wantedElsewhere tells whether a service of another namespace claims the address of a frontend: within one, age decides.
func wantedElsewhere(row *frontends.Frontend) bool {
	own := namespaceOf(row.Service)
	return slices.ContainsFunc(row.Refused, func(name string) bool { return namespaceOf(name) != own })
}

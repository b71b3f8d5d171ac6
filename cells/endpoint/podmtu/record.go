package podmtu

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/statefile"
	"github.com/waggle-net/waggle/pkg/tables/mtus"
)

const (
	fileKind = "mtus"
	fileName = "given.json"
	// maxAssigned limits the list; the size that was assigned least recently is removed.
	maxAssigned = 64
	// maxRoute is 65535 minus 15 bytes for headers of links.
	maxRoute = 65520
)

// size is the MTU in bytes of links and of default routes.
type size struct {
	Device int `json:"device"`
	Route  int `json:"route"`
}

// sizeOf returns the size in a row of mtus. The kernel stores at most maxRoute for a route.
func sizeOf(m mtus.MTU) size { return size{m.DeviceMTU, min(m.RouteMTU, maxRoute)} }

// record is the list of the sizes that this node has assigned to pods, the latest last. A file keeps it for the next runs.
type record struct {
	store *statefile.Store
	log   *slog.Logger
	given []size // nil before the file is read
}

func newRecord(s agentconfig.Agent, log *slog.Logger) *record {
	return &record{store: statefile.New(filepath.Join(s.StateDir, "mtus"), fileKind), log: log}
}

// add appends a size to the list and writes the file, unless the size is already the last one.
func (r *record) add(s size) error {
	if err := r.read(); err != nil {
		return err
	}
	if n := len(r.given); n > 0 && r.given[n-1] == s {
		return nil
	}
	next := append(slices.DeleteFunc(slices.Clone(r.given), func(g size) bool { return g == s }), s)
	next = next[max(0, len(next)-maxAssigned):]
	if err := r.store.Write(fileName, next); err != nil {
		return fmt.Errorf("record the MTU of pods: %w: free space in the state directory; running pods keep their MTU until then", err)
	}
	r.given = next
	return nil
}

// read reads the file once. It quarantines an unusable file; pods with another MTU than the current one then keep it.
func (r *record) read() error {
	if r.given != nil {
		return nil
	}
	if err := r.store.Open(); err != nil {
		return fmt.Errorf("read the record of MTUs: %w", err)
	}
	files, err := r.store.ReadAll()
	if err != nil {
		return fmt.Errorf("read the record of MTUs: %w", err)
	}
	given := []size{}
	for _, f := range files {
		if f.Name != fileName {
			continue
		}
		if f.Err == nil {
			f.Err = json.Unmarshal(f.Document, &given)
		}
		if f.Err != nil {
			given = []size{}
			kept, err := r.store.Quarantine(f.Name)
			r.log.Warn("The record of MTUs cannot be used; running pods may keep another MTU", "keptAs", kept, "error", errors.Join(f.Err, err))
		}
	}
	r.given = given
	return nil
}

// link reports whether this node may have assigned the MTU of a link.
func (r *record) link(mtu int) bool {
	return slices.ContainsFunc(r.given, func(g size) bool { return g.Device == mtu })
}

// route reports whether this node may have assigned the MTU of a default route. The kernel lowers routes of IPv6 to the MTU of their link, and raises them with
// it.
func (r *record) route(mtu int) bool {
	return r.link(mtu) || slices.ContainsFunc(r.given, func(g size) bool { return g.Route == mtu })
}

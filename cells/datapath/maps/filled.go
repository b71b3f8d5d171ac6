package maps

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/loop"
	"github.com/waggle-net/waggle/pkg/tables/attachments"
	"github.com/waggle-net/waggle/pkg/tables/bpfmaps"
)

// markPrefix is the prefix of the name of a mark: a directory beside the pin of a map that its owner has not filled yet. The mark is created before the pin and
// removed when hooks are given to programs that read the map, so the run after a crash waits for the owner too. Releases that know no marks treat such a name
// as the pin of a map of another version, and remove it.
const markPrefix = "filling_"

// Pauses between two attempts to remove marks.
const (
	firstUnmark = 100 * time.Millisecond
	lastUnmark  = time.Minute
)

// markOf returns the path of the mark of a pin, or its name if pin is a name.
func markOf(pin string) string {
	return filepath.Join(filepath.Dir(pin), markPrefix+filepath.Base(pin))
}

// marked reports whether the owner of a pinned map had not filled it when the previous run ended. It returns true if the directory cannot be read.
func (s *store) marked(pin string) bool {
	names, err := s.Kernel.Pins(s.dir)
	return err != nil || slices.Contains(names, filepath.Base(markOf(pin)))
}

// mark creates the mark of a map, or removes it if the map is filled.
func (s *store) mark(m *bpfmaps.Map) error {
	if m.Filled {
		return s.Kernel.Unpin(markOf(m.Pin))
	}
	return s.Kernel.Mark(markOf(m.Pin))
}

// followFilled waits until hooks are given to programs of this generation, and then marks all maps as filled. The loader gives no hook to such programs before
// all maps are filled.
func (s *store) followFilled(ctx context.Context, health cell.Health) error {
	begun := func(r *loop.Round) bool { r.Watch(s.Attachments); return attachments.Begun(r.Txn, s.Attachments) }
	if !loop.Await(ctx, s.DB, loop.Options{Tables: []statedb.TableMeta{s.Attachments}}, begun) {
		return nil
	}
	if err := s.setFilled(); err != nil {
		return err
	}
	health.OK("all maps are filled")
	return nil
}

// setFilled pins the maps of the previous layout, which are filled too, and removes all marks.
func (s *store) setFilled() error {
	var errs []error
	var filled []opened
	s.mu.Lock()
	for name, o := range s.open {
		if o.err != nil || o.row.Filled {
			continue
		}
		row := *o.row
		row.Filled = true
		err := s.pinShadow(o.shadow)
		if err == nil {
			err = s.mark(&row)
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		o.row = &row
		s.open[name] = o
		filled = append(filled, o)
	}
	s.mu.Unlock()
	s.publish(filled)
	return errors.Join(errs...)
}

// pinShadow pins a shadow map that has no pin yet.
func (s *store) pinShadow(t *shadowMap) error {
	if t == nil || !t.unpinned {
		return nil
	}
	if err := s.Kernel.Pin(t.m, t.pin); err != nil {
		return err
	}
	t.unpinned = false
	return nil
}

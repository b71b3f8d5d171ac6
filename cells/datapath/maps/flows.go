package maps

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// nextName is the suffix of the name of a map of flows that will replace a map of another size. Releases that do not know such maps treat the pin as one of
// another version, and remove it.
const nextName = "_next"

// retireAfter is how long a map of flows stays open after its replacement, because a cell may be reading it.
const retireAfter = time.Minute

var errNoResizeState = errors.New("the map " + bpf.MapResizeState + " is not open: the phase of a resize of flow maps is unknown")

// flowResize is the state of a change of the size of maps of flows. Programs read the same state from the map resize_state.
//
// Cells use the pinned map until the change ends, and it has every entry until then; see bpf/lib/resize.h. So an agent that starts during the change finds all
// entries at the pin. A change that the previous run did not end continues as follows:
//
//   - [bpf.ResizeBefore]: programs on hooks use the pinned map, whatever map of another size they were loaded for. The change continues under its number, with
//     maps of the sizes that are configured now.
//   - [bpf.ResizeDuring]: all programs on hooks write to both maps. This change is ended first, because a later change has another number.
type flowResize struct {
	state  *ebpf.Map
	number uint32
	phase  bpf.ResizePhase
}

// names lists all maps in the order in which they are opened. resize_state is the first: its phase decides which map of flows is the present one.
func (s *store) names() []string {
	names := slices.Sorted(maps.Keys(s.Specs))
	if at := slices.Index(names, bpf.MapResizeState); at >= 0 {
		names = slices.Insert(slices.Delete(names, at, at+1), 0, bpf.MapResizeState)
	}
	return names
}

// isFlows reports whether programs take part in a change of the size of a map.
func (s *store) isFlows(name string) bool {
	_, found := s.Specs[bpf.MapResizeState]
	return found && slices.Contains(bpf.FlowMaps(), name)
}

// nextPin returns the pin of the map that will replace a map of another size.
func (s *store) nextPin(l layout) string { return s.pin(l.Name+nextName, l.Version) }

// restoreResize reads the state of a change from the map state, and ends a change that the previous run did not end.
func (s *store) restoreResize(state *ebpf.Map) error {
	value, err := s.Kernel.ResizeState(state)
	if err != nil {
		return err
	}
	r := &flowResize{state: state}
	r.number, r.phase = bpf.ReadResizeState(value)
	var errs []error
	for _, name := range bpf.FlowMaps() {
		l, found := s.Specs[name]
		switch {
		case !found:
		case r.phase == bpf.ResizeDuring:
			errs = append(errs, s.endInterrupted(l))
		default:
			errs = append(errs, s.Kernel.Unpin(s.nextPin(l)))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if r.phase == bpf.ResizeDuring {
		if err := s.setPhase(r, bpf.ResizeNone); err != nil {
			return err
		}
	}
	s.resize = r // maps of flows may be opened from here on
	return nil
}

// endInterrupted moves the entries of one map to the map of another size, unless the previous run has done so.
func (s *store) endInterrupted(l layout) error {
	next, err := s.Kernel.OpenAny(l.MapSpec, s.nextPin(l))
	if err != nil || next == nil {
		return err
	}
	defer s.Kernel.Close(next)
	have, err := s.Kernel.OpenAny(l.MapSpec, s.pin(l.Name, l.Version))
	if err != nil {
		return err
	}
	if have != nil {
		defer s.Kernel.Close(have)
		if err := s.migrate(l.Name, next, have); err != nil {
			return err
		}
	}
	return s.Kernel.Move(s.nextPin(l), s.pin(l.Name, l.Version))
}

// setPhase sets the phase for programs. It returns when no program runs that has read the previous phase.
func (s *store) setPhase(r *flowResize, phase bpf.ResizePhase) error {
	if err := s.Kernel.SetResizeState(r.state, bpf.ResizeState(r.number, phase)); err != nil {
		return err
	}
	r.phase = phase
	return nil
}

// planResize creates the map of the configured size, which replaces a map of flows when every hook runs programs that use both.
func (s *store) planResize(l layout, have uint32, o *opened) {
	next, err := s.makeNext(l, o.m)
	if err != nil {
		s.keepSize(l, have, o, err)
		return
	}
	o.next = next
	o.row.MaxEntries = have
	o.row.Note = fmt.Sprintf("%d entries are configured: the map is resized when every hook runs this generation", l.MaxEntries)
}

func (s *store) makeNext(l layout, have *ebpf.Map) (*ebpf.Map, error) {
	if err := s.checkFits(have, l.MaxEntries); err != nil {
		return nil, err
	}
	next, err := s.Kernel.Create(l.MapSpec)
	if err != nil {
		return nil, err
	}
	if err := s.Kernel.Pin(next, s.nextPin(l)); err != nil {
		return nil, errors.Join(err, s.Kernel.Close(next))
	}
	return next, nil
}

// beginResize sets the phase in which programs that are loaded for maps of another size use the former maps. If that fails, all maps keep their size.
func (s *store) beginResize(open map[string]opened) {
	if s.resize == nil || s.resize.phase == bpf.ResizeBefore {
		return
	}
	var err error
	for name, o := range open {
		if o.next == nil {
			continue
		}
		if s.resize.phase == bpf.ResizeNone && err == nil {
			s.resize.number++
			err = s.setPhase(s.resize, bpf.ResizeBefore)
		}
		if err != nil {
			_ = errors.Join(s.Kernel.Unpin(s.nextPin(s.Specs[name])), s.Kernel.Close(o.next))
			o.next, o.row.Shadow = nil, ""
			s.keepSize(s.Specs[name], o.row.MaxEntries, &o, err)
			open[name] = o
		}
	}
}

// endResize moves the entries of maps of flows to maps of the configured size. Every hook must run programs that use both maps.
func (s *store) endResize(ctx context.Context) error {
	if s.resize == nil || s.resize.phase == bpf.ResizeNone {
		return nil
	}
	if s.hasNext() {
		if err := s.checkCapacity(); err != nil {
			return err
		}
		if err := s.Kernel.AwaitPackets(); err != nil { // programs that the last hook ran before write only to the former map
			return err
		}
		if err := s.setPhase(s.resize, bpf.ResizeDuring); err != nil {
			return err
		}
		if err := s.migrateAll(ctx); err != nil {
			return err
		}
	}
	if err := s.replaceFlows(); err != nil {
		return err
	}
	s.publishAll() // programs may be loaded without a change from here on
	return nil
}

// checkCapacity returns an error if a map of flows has more entries than are configured. Entries are copied when enough of them have expired.
func (s *store) checkCapacity() error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var errs []error
	for name, o := range s.open {
		if o.next == nil || s.resize.phase != bpf.ResizeBefore {
			continue
		}
		if err := s.checkFits(o.m, s.Kernel.Size(o.next)); err != nil {
			errs = append(errs, fmt.Errorf("map %s cannot be resized to %d entries yet: %w", name, s.Kernel.Size(o.next), err))
		}
	}
	return errors.Join(errs...)
}

func (s *store) checkFits(have *ebpf.Map, wanted uint32) error {
	entries, err := s.Kernel.Count(have)
	if err == nil && entries > wanted {
		err = fmt.Errorf("it has %d entries", entries)
	}
	return err
}

func (s *store) hasNext() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, o := range s.open {
		if o.next != nil {
			return true
		}
	}
	return false
}

func (s *store) migrateAll(ctx context.Context) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	s.copying.Lock()
	defer s.copying.Unlock()
	var errs []error
	for name, o := range s.open {
		if o.next != nil {
			watchdog.Busy(ctx)
			errs = append(errs, s.migrate(name, o.next, o.m))
		}
	}
	return errors.Join(errs...)
}

// migrate copies the entries of a map of flows. Entries that do not fit are lost, with a warning. After another error the former map must stay the map that has
// every entry.
func (s *store) migrate(name string, to, from *ebpf.Map) error {
	err := s.Kernel.Migrate(to, from)
	if errors.Is(err, unix.E2BIG) {
		s.Log.Warn("Cannot copy all entries of a map that is resized", "map", name, "error", err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("copy the entries of map %s, which is resized: %w", name, err)
	}
	return nil
}

// replaceFlows replaces the maps that cells use by the maps of another size, and ends the change for programs. The lock prevents that programs are loaded with
// maps of which only some are replaced.
func (s *store) replaceFlows() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for name, o := range s.open {
		if o.next == nil {
			continue
		}
		l := s.Specs[name]
		if err := s.Kernel.Move(s.nextPin(l), o.row.Pin); err != nil {
			errs = append(errs, err)
			continue
		}
		s.retired = append(s.retired, o.m)
		row := *o.row
		row.Note, row.Shadow, row.MaxEntries = fmt.Sprintf("resized from %d entries", row.MaxEntries), "", l.MaxEntries
		row.Memory, row.Reused = s.Kernel.Memory(o.next), false
		o.m, o.next, o.row = o.next, nil, &row
		s.open[name] = o
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("replace resized maps: %w", err)
	}
	return s.setPhase(s.resize, bpf.ResizeNone)
}

// closeRetired closes replaced maps of flows after retireAfter.
func (s *store) closeRetired(ctx context.Context) error {
	s.mu.RLock()
	retired := len(s.retired)
	s.mu.RUnlock()
	watchdog.Snapshot(ctx, s.DB) // the job no longer follows a table
	if retired == 0 || watchdog.Sleep(ctx, retireAfter) != nil {
		return nil // the stop hook closes them
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, m := range s.retired {
		errs = append(errs, s.Kernel.Close(m))
	}
	s.retired = nil
	return errors.Join(errs...)
}

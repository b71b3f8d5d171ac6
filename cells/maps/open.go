package maps

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"github.com/cilium/ebpf"

	"github.com/waggle-net/waggle/bpf"
	mapstable "github.com/waggle-net/waggle/pkg/tables/bpfmaps"
)

// What follows the name of a pin.
const (
	resizedSuffix = "_resized" // a map that programs may still read while one of another size takes its place
	unfitSuffix   = "_unfit"   // what was found in place of a map; nobody but an operator removes it
)

// opened is one map, or why there is none.
type opened struct {
	m    *ebpf.Map
	twin *twin     // written as well; nil when no other programs can be attached
	next *ebpf.Map // of flows: the map of another size that takes the place of m when every hook runs programs for it; nil for none
	err  error
	row  *mapstable.Map
}

// openMap takes over the pinned map, or makes one and fills it from what programs of another generation read.
func (s *store) openMap(l layout) (o opened) {
	pin := s.pin(l.Name, l.Version)
	o.row = describe(l, pin)
	if o.err = s.openPresent(l, pin, &o); o.err == nil && o.twin == nil && l.Former != nil {
		o.err = s.openFormer(l, &o)
	}
	if o.err == nil && l.Name == bpf.MapResizeState {
		o.err = s.restoreResize(o.m)
	}
	if o.err != nil {
		if o.m != nil {
			_ = s.Kernel.Close(o.m)
			o.m = nil
		}
		o.row.Error = o.err.Error()
		return o
	}
	o.row.Memory, o.row.Opened = s.Kernel.Memory(o.m), time.Now()
	if o.next != nil {
		o.row.Memory += s.Kernel.Memory(o.next)
		o.row.Twin = s.nextPin(l)
	}
	if o.twin != nil {
		o.row.Memory += s.Kernel.Memory(o.twin.m)
		o.row.Twin = o.twin.pin
	}
	return o
}

func (s *store) pin(name string, version uint32) string {
	return filepath.Join(s.dir, bpf.PinName(name, version))
}

// openPresent opens or makes the map of the present layout.
func (s *store) openPresent(l layout, pin string, o *opened) error {
	if s.isFlows(l.Name) && s.resize == nil {
		return errNoResizeState
	}
	m, err := s.Kernel.Open(l.MapSpec, pin)
	switch {
	case errors.Is(err, errUnfit):
		if err := s.setAside(pin, err, o); err != nil {
			return err
		}
		return s.makeMap(l, pin, o)
	case errors.Is(err, os.ErrNotExist):
		return s.makeMap(l, pin, o)
	case err != nil:
		return err
	}
	o.m, o.row.Reused, o.row.Filled = m, true, !s.marked(pin)
	switch have := s.Kernel.Size(m); {
	case have == l.MaxEntries:
	case s.isFlows(l.Name):
		s.planResize(l, have, o)
	default:
		s.replaceSize(l, pin, have, o)
		return nil
	}
	if old, err := s.Kernel.Open(l.MapSpec, pin+resizedSuffix); err == nil { // the run before did not come to replace all hooks
		o.twin = &twin{m: old, pin: pin + resizedSuffix, resized: true, seen: make(seen)}
	}
	return nil
}

// setAside moves what cannot be the map out of the way. Programs keep the map that they use, wherever its pin went.
func (s *store) setAside(pin string, why error, o *opened) error {
	if err := s.Kernel.Move(pin, pin+unfitSuffix); err != nil {
		return fmt.Errorf("%w, and it cannot be moved out of the way: %w; remove it, the agent tries again", why, err)
	}
	o.row.Note = fmt.Sprintf("%s; it was moved to %s, remove it when it is not needed", why, pin+unfitSuffix)
	s.Log.Warn("A pinned map does not fit and was moved out of the way; it is made anew", "map", o.row.Name, "error", why,
		"movedTo", pin+unfitSuffix)
	return nil
}

// makeMap makes the map, fills it from its twin, when there is one, and pins it only then, marked when its owner has yet to fill it: a crash leaves nothing
// that the next run takes for filled.
func (s *store) makeMap(l layout, pin string, o *opened) error {
	m, err := s.Kernel.Create(l.MapSpec)
	if err != nil {
		return err
	}
	if err = s.fillNew(l, pin, m, o); err == nil {
		if err = s.mark(o.row); err == nil {
			err = s.Kernel.Pin(m, pin)
		}
	}
	if err != nil {
		o.closeTwin(s.Kernel)
		return errors.Join(err, s.Kernel.Close(m))
	}
	o.m = m
	return nil
}

// fillNew copies what programs read now: the map of another size that an interrupted run left, or that of the layout before.
func (s *store) fillNew(l layout, pin string, m *ebpf.Map, o *opened) error {
	if old, err := s.Kernel.Open(l.MapSpec, pin+resizedSuffix); err == nil {
		o.twin = &twin{m: old, pin: pin + resizedSuffix, resized: true, seen: make(seen)}
		o.row.Filled = !s.marked(pin)
		return s.Kernel.Fill(m, old, nil)
	}
	if l.Former == nil {
		return nil
	}
	old, err := s.Kernel.Open(l.Former.Spec, s.pin(l.Name, l.Former.Version))
	if err != nil {
		return nil // openFormer makes one, or says what is wrong
	}
	o.twin = &twin{m: old, pin: s.pin(l.Name, l.Former.Version), back: l.Former.Back}
	o.row.Filled = !l.Former.Partial
	o.row.Note = fmt.Sprintf("made from layout %d", l.Former.Version)
	return s.Kernel.Fill(m, old, l.Former.Forward)
}

// openFormer opens the map of the layout before, or makes it: whoever goes back a release finds it as it must be.
func (s *store) openFormer(l layout, o *opened) error {
	pin := s.pin(l.Name, l.Former.Version)
	old, err := s.Kernel.Open(l.Former.Spec, pin)
	if errors.Is(err, errUnfit) {
		if err := s.setAside(pin, err, o); err != nil {
			return err
		}
		err = os.ErrNotExist
	}
	made := errors.Is(err, os.ErrNotExist)
	if made {
		old, err = s.makeFormer(l, pin, o)
	}
	if err != nil {
		return fmt.Errorf("keep layout %d of map %s: %w", l.Former.Version, l.Name, err)
	}
	o.twin = &twin{m: old, pin: pin, back: l.Former.Back, unpinned: made && !o.row.Filled}
	return nil
}

// makeFormer makes the map of the layout before from the present one. The release before knows no marks: without a pin it waits until it has filled its own.
func (s *store) makeFormer(l layout, pin string, o *opened) (*ebpf.Map, error) {
	m, err := s.Kernel.Create(l.Former.Spec)
	if err != nil {
		return nil, err
	}
	if err = s.Kernel.Fill(m, o.m, l.Former.Back); err == nil && o.row.Filled {
		err = s.Kernel.Pin(m, pin)
	}
	if err != nil {
		return nil, errors.Join(err, s.Kernel.Close(m))
	}
	return m, nil
}

// replaceSize puts a map of the wanted size into the place of one of another size. When that cannot be done, for want of memory
// or because there are more entries than fit, the map that is there stays in use.
func (s *store) replaceSize(l layout, pin string, have uint32, o *opened) {
	m, err := s.makeResized(l, pin, o.m)
	if err != nil {
		s.keepSize(l, have, o, err)
		return
	}
	o.twin = &twin{m: o.m, pin: pin + resizedSuffix, resized: true, seen: make(seen)}
	o.m, o.row.Reused = m, false
	o.row.Note = fmt.Sprintf("it had %d entries", have)
}

func (s *store) keepSize(l layout, have uint32, o *opened, why error) {
	o.row.MaxEntries = have
	o.row.Note = fmt.Sprintf("it keeps its %d entries, %d are configured: %s", have, l.MaxEntries, why)
	s.Log.Warn("A map keeps its size", "map", l.Name, "entries", have, "wanted", l.MaxEntries, "error", why)
}

func (s *store) makeResized(l layout, pin string, old *ebpf.Map) (*ebpf.Map, error) {
	m, err := s.Kernel.Create(l.MapSpec)
	if err != nil {
		return nil, err
	}
	if l.Name != bpf.MapMaglev { // tables of another size, which programs can do without until they are there anew
		err = s.Kernel.Fill(m, old, nil)
	}
	if err == nil {
		if err = s.Kernel.Move(pin, pin+resizedSuffix); err == nil {
			err = s.Kernel.Pin(m, pin)
			if err != nil {
				err = errors.Join(err, s.Kernel.Move(pin+resizedSuffix, pin))
			}
		}
	}
	if err != nil {
		return nil, errors.Join(err, s.Kernel.Close(m))
	}
	return m, nil
}

func (o *opened) closeTwin(k kernel) {
	if o.twin != nil {
		_ = k.Close(o.twin.m)
		o.twin = nil
	}
}

// pinned is how our pins are called.
var pinned = regexp.MustCompile(`^[a-z0-9_]+_v[0-9]+(` + resizedSuffix + `)?$`)

// unpinStrangers unpins maps of layouts that this build does not know, before it writes to any: from now on nobody would
// keep them current, and the generation that knows them must make them anew when it comes back. Programs that are attached
// keep theirs.
func (s *store) unpinStrangers() error {
	var known []string
	for name, l := range s.Specs {
		pin := bpf.PinName(name, l.Version)
		known = append(known, pin, pin+resizedSuffix, markOf(pin), filepath.Base(s.nextPin(l)))
		if l.Former != nil {
			known = append(known, bpf.PinName(name, l.Former.Version))
		}
	}
	names, err := s.Kernel.Pins(s.dir)
	if err != nil {
		return fmt.Errorf("list pinned maps: %w", err)
	}
	for _, name := range names {
		if slices.Contains(known, name) || !pinned.MatchString(name) {
			continue
		}
		s.Log.Info("Unpinning a map of another version", "pin", name)
		err = errors.Join(err, s.Kernel.Unpin(filepath.Join(s.dir, name)))
	}
	return err
}

func describe(l layout, pin string) *mapstable.Map {
	o := owner(l.Name)
	filled := o != mapstable.OwnerEndpointMaps && o != mapstable.OwnerIpcache && o != mapstable.OwnerServiceMaps && o != mapstable.OwnerNodeMaps
	return &mapstable.Map{Name: l.Name, Type: l.Type.String(), KeySize: l.KeySize, ValueSize: l.ValueSize,
		MaxEntries: l.MaxEntries, Pin: pin, Owner: o, Filled: filled}
}

// owner names the cell that fills a map.
func owner(name string) string {
	switch name {
	case bpf.MapEndpointFacts, bpf.MapLinks, bpf.MapEndpoints:
		return mapstable.OwnerEndpointMaps
	case bpf.MapIpcache, bpf.MapIpcachePrefixes:
		return mapstable.OwnerIpcache
	case bpf.MapNodes, bpf.MapNodeAddrs:
		return mapstable.OwnerNodeMaps
	case bpf.MapServices, bpf.MapBackends, bpf.MapServiceSlots, bpf.MapMaglev, bpf.MapAffinityMembers, bpf.MapSourceRanges:
		return mapstable.OwnerServiceMaps
	case bpf.MapDatapath:
		return "loader"
	case bpf.MapPolicy, bpf.MapPolicyRanges, bpf.MapCIDRs:
		return "policy"
	case bpf.MapNetdevs, bpf.MapUnmasqueraded:
		return "masquerade"
	}
	return mapstable.OwnerDatapath
}

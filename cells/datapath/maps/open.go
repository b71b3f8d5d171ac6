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
	"golang.org/x/sync/errgroup"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/tables/bpfmaps"
)

// Suffixes of pins.
const (
	resizedSuffix = "_resized" // a map that programs may still read after a map of another size has replaced it
	unfitSuffix   = "_unfit"   // an object that was found at the pin of a map; only an operator removes it
)

// errHooksReadPrevious delays a resize while programs of hooks may still read the map that the last resize replaced.
var errHooksReadPrevious = errors.New("some hooks may still use its previous size; restart the agent when all hooks are replaced")

// opened is one map, or the error that prevents its use.
type opened struct {
	m      *ebpf.Map
	shadow *shadowMap // gets every write too; nil if no programs that use another map can be attached
	next   *ebpf.Map  // for flows: the map of another size that replaces m when every hook runs programs for it; nil for none
	err    error
	row    *bpfmaps.Map
}

// openMap opens the pinned map, or creates a map and fills it from the map that programs of another generation read.
func (s *store) openMap(l layout) (o opened) {
	pin := s.pin(l.Name, l.Version)
	o.row = describe(l, pin)
	if o.err = s.openPresent(l, pin, &o); o.err == nil && o.shadow == nil && l.Former != nil {
		o.err = s.openPrevious(l, &o)
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
		o.row.Shadow = s.nextPin(l)
	}
	if o.shadow != nil {
		o.row.Memory += s.Kernel.Memory(o.shadow.m)
		o.row.Shadow = o.shadow.pin
	}
	return o
}

func (s *store) pin(name string, version uint32) string {
	return filepath.Join(s.dir, bpf.PinName(name, version))
}

// openPresent opens or creates the map of the present layout.
func (s *store) openPresent(l layout, pin string, o *opened) error {
	if s.isFlows(l.Name) && s.resize == nil {
		return errNoResizeState
	}
	m, err := s.Kernel.Open(l.MapSpec, pin)
	switch {
	case errors.Is(err, errUnfit):
		if err := s.quarantine(pin, err, o); err != nil {
			return err
		}
		return s.makeMap(l, pin, o)
	case errors.Is(err, os.ErrNotExist):
		return s.makeMap(l, pin, o)
	case err != nil:
		return err
	}
	o.m, o.row.Reused, o.row.Filled = m, true, !s.marked(pin)
	if old, err := s.Kernel.Open(l.MapSpec, pin+resizedSuffix); err == nil { // the previous run ended before all hooks were replaced
		o.shadow = &shadowMap{m: old, pin: pin + resizedSuffix, resized: true, common: make(keyHashes)}
	}
	switch have := s.Kernel.Size(m); {
	case have == l.MaxEntries:
	case s.isFlows(l.Name):
		s.planResize(l, have, o)
	case o.shadow != nil: // programs may still read the shadow map; a third map would take its pin and its writes
		s.keepSize(l, have, o, errHooksReadPrevious)
	default:
		s.replaceSize(l, pin, have, o)
	}
	return nil
}

// quarantine renames a pin that does not fit to <pin>_unfit. Programs keep the map that they use, wherever its pin is.
func (s *store) quarantine(pin string, why error, o *opened) error {
	if err := s.Kernel.Move(pin, pin+unfitSuffix); err != nil {
		return fmt.Errorf("%w, and its pin cannot be renamed: %w; remove the pin, the agent retries", why, err)
	}
	o.row.Note = fmt.Sprintf("%s; it was moved to %s, remove it if it is not needed", why, pin+unfitSuffix)
	s.Log.Warn("A pinned map does not fit and was renamed; the map is recreated", "map", o.row.Name, "error", why,
		"movedTo", pin+unfitSuffix)
	return nil
}

// createAtOnce is the number of maps that are created at the same time.
const createAtOnce = 2

// createMissing creates the maps without a pin, several at the same time: the kernel allocates all entries of most maps, which takes 40 ms of CPU time in a first
// start, and the loader waits for it. openMap opens and pins the maps one after another, because their order matters. After an error it tries again, and returns
// the error.
func (s *store) createMissing() {
	pins, err := s.Kernel.Pins(s.dir)
	if err != nil {
		return
	}
	var missing []layout
	for _, l := range s.Specs {
		if !slices.Contains(pins, bpf.PinName(l.Name, l.Version)) {
			missing = append(missing, l)
		}
	}
	made := make([]*ebpf.Map, len(missing))
	var creating errgroup.Group
	creating.SetLimit(createAtOnce)
	for i, l := range missing {
		creating.Go(func() error {
			made[i], _ = s.Kernel.Create(l.MapSpec)
			return nil
		})
	}
	_ = creating.Wait()
	s.created = make(map[string]*ebpf.Map)
	for i, l := range missing {
		if made[i] != nil {
			s.created[l.Name] = made[i]
		}
	}
}

// closeCreated closes maps that openMap did not take, such as those of flows while the state of their size cannot be read.
func (s *store) closeCreated() {
	for _, m := range s.created {
		_ = s.Kernel.Close(m)
	}
	s.created = nil
}

// create returns an empty map without a pin.
func (s *store) create(l layout) (*ebpf.Map, error) {
	if m := s.created[l.Name]; m != nil {
		delete(s.created, l.Name)
		return m, nil
	}
	return s.Kernel.Create(l.MapSpec)
}

// makeMap creates the map and fills it from its shadow map, if there is one. It pins the map after that, with a mark if its owner has yet to fill it, so after a
// crash the next run treats no unfilled map as filled.
func (s *store) makeMap(l layout, pin string, o *opened) error {
	m, err := s.create(l)
	if err != nil {
		return err
	}
	if err = s.fillNew(l, pin, m, o); err == nil {
		if err = s.mark(o.row); err == nil {
			err = s.Kernel.Pin(m, pin)
		}
	}
	if err != nil {
		o.closeShadow(s.Kernel)
		return errors.Join(err, s.Kernel.Close(m))
	}
	o.m = m
	return nil
}

// fillNew copies the map that programs read now: the map of another size that an interrupted run left, or the map of the previous layout.
func (s *store) fillNew(l layout, pin string, m *ebpf.Map, o *opened) error {
	if old, err := s.Kernel.Open(l.MapSpec, pin+resizedSuffix); err == nil {
		o.shadow = &shadowMap{m: old, pin: pin + resizedSuffix, resized: true, common: make(keyHashes)}
		o.row.Filled = !s.marked(pin)
		return s.Kernel.Fill(m, old, nil)
	}
	if l.Former == nil {
		return nil
	}
	old, err := s.Kernel.Open(l.Former.Spec, s.pin(l.Name, l.Former.Version))
	if err != nil {
		return nil // openPrevious creates one or returns the error
	}
	o.shadow = &shadowMap{m: old, pin: s.pin(l.Name, l.Former.Version), back: l.Former.Back}
	o.row.Filled = !l.Former.Partial
	o.row.Note = fmt.Sprintf("created from layout %d", l.Former.Version)
	return s.Kernel.Fill(m, old, l.Former.Forward)
}

// openPrevious opens the map of the previous layout, or creates it, so that a downgrade to the previous release finds a current map.
func (s *store) openPrevious(l layout, o *opened) error {
	pin := s.pin(l.Name, l.Former.Version)
	old, err := s.Kernel.Open(l.Former.Spec, pin)
	if errors.Is(err, errUnfit) {
		if err := s.quarantine(pin, err, o); err != nil {
			return err
		}
		err = os.ErrNotExist
	}
	made := errors.Is(err, os.ErrNotExist)
	if made {
		old, err = s.createPrevious(l, pin, o)
	}
	if err != nil {
		return fmt.Errorf("keep layout %d of map %s: %w", l.Former.Version, l.Name, err)
	}
	o.shadow = &shadowMap{m: old, pin: pin, back: l.Former.Back, unpinned: made && !o.row.Filled}
	return nil
}

// createPrevious creates the map of the previous layout from the present map. It does not pin an unfilled map: the previous release knows no marks, and waits for
// the owners to fill its map only if there is no pin.
func (s *store) createPrevious(l layout, pin string, o *opened) (*ebpf.Map, error) {
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

// replaceSize replaces a map by one of the configured size. If there is too little memory, or there are more entries than fit, the existing map stays in use.
func (s *store) replaceSize(l layout, pin string, have uint32, o *opened) {
	m, err := s.makeResized(l, pin, o.m)
	if err != nil {
		s.keepSize(l, have, o, err)
		return
	}
	o.shadow = &shadowMap{m: o.m, pin: pin + resizedSuffix, resized: true, common: make(keyHashes)}
	o.m, o.row.Reused = m, false
	o.row.Note = fmt.Sprintf("resized from %d entries", have)
}

func (s *store) keepSize(l layout, have uint32, o *opened, why error) {
	o.row.MaxEntries = have
	o.row.Note = fmt.Sprintf("it keeps its size of %d entries, %d are configured: %s", have, l.MaxEntries, why)
	s.Log.Warn("A map keeps its size", "map", l.Name, "entries", have, "wanted", l.MaxEntries, "error", why)
}

func (s *store) makeResized(l layout, pin string, old *ebpf.Map) (*ebpf.Map, error) {
	m, err := s.Kernel.Create(l.MapSpec)
	if err != nil {
		return nil, err
	}
	if l.Name != bpf.MapMaglev { // tables of another size; programs work without them until they are written again
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

func (o *opened) closeShadow(k kernel) {
	if o.shadow != nil {
		_ = k.Close(o.shadow.m)
		o.shadow = nil
	}
}

// pinned matches the names of the pins that this cell creates.
var pinned = regexp.MustCompile(`^[a-z0-9_]+_v[0-9]+(` + resizedSuffix + `)?$`)

// unpinUnknown unpins maps of layouts that this build does not know, before it writes to any map. From then on no agent keeps such a map current, so a
// generation that knows its layout must create it again. Attached programs keep their maps.
func (s *store) unpinUnknown() error {
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

func describe(l layout, pin string) *bpfmaps.Map {
	o := owner(l.Name)
	filled := o != bpfmaps.OwnerEndpointMaps && o != bpfmaps.OwnerIpcache && o != bpfmaps.OwnerServiceMaps && o != bpfmaps.OwnerNodeMaps
	return &bpfmaps.Map{Name: l.Name, Type: l.Type.String(), KeySize: l.KeySize, ValueSize: l.ValueSize,
		MaxEntries: l.MaxEntries, Pin: pin, Owner: o, Filled: filled}
}

// owner returns the cell that fills a map, or OwnerDatapath if programs fill it.
func owner(name string) string {
	switch name {
	case bpf.MapEndpointFacts, bpf.MapLinks, bpf.MapEndpoints:
		return bpfmaps.OwnerEndpointMaps
	case bpf.MapIpcache, bpf.MapIpcachePrefixes:
		return bpfmaps.OwnerIpcache
	case bpf.MapNodes, bpf.MapNodeAddrs:
		return bpfmaps.OwnerNodeMaps
	case bpf.MapServices, bpf.MapBackends, bpf.MapServiceSlots, bpf.MapMaglev, bpf.MapAffinityMembers, bpf.MapSourceRanges:
		return bpfmaps.OwnerServiceMaps
	case bpf.MapDatapath:
		return "loader"
	case bpf.MapPolicy, bpf.MapPolicyRanges, bpf.MapCIDRs:
		return "policy"
	case bpf.MapNetdevs, bpf.MapUnmasqueraded:
		return "masquerade"
	}
	return bpfmaps.OwnerDatapath
}

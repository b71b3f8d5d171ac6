package maps

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/datapath/pinnedmaps"
	"github.com/waggle-net/waggle/pkg/drift"
	"github.com/waggle-net/waggle/pkg/loop"
	"github.com/waggle-net/waggle/pkg/tables/attachments"
	"github.com/waggle-net/waggle/pkg/tables/bpfmaps"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

const (
	firstRetry = 250 * time.Millisecond // for a temporary lack of memory
	lastRetry  = time.Minute

	soonReplaced = time.Minute // hooks that are not replaced this long after the start are reported in the health
)

var errHooks = errors.New("hooks run programs of another generation")

// params are the dependencies of the store.
type params struct {
	cell.In

	Log       *slog.Logger
	Health    cell.Health // of the module: it persists after the jobs have ended
	Jobs      job.Group
	Lifecycle cell.Lifecycle
	Agent     agentconfig.Agent
	DB        *statedb.DB
	Table     statedb.RWTable[*bpfmaps.Map]
	Kernel    kernel
	Specs     specs
	Drift     drift.Watch
	// Attachments records when hooks are given to this generation, and when all hooks run it.
	Attachments statedb.Table[*attachments.Attachment]
}

// store implements [pinnedmaps.Maps].
type store struct {
	params
	dir string

	mu   sync.RWMutex      // guards open; held for reading while a map is written, so that no shadow map is closed during a write
	open map[string]opened // nil before the start and after the stop

	copying sync.Mutex // taken after mu while entries are copied between maps of two sizes, or deleted in both

	resize  *flowResize // nil until its map is open; written by the start hook, by the job open-maps, and by drop-resized-maps after that
	retired []*ebpf.Map // replaced maps of flows, not yet closed

	created map[string]*ebpf.Map // by name: of createMissing, until openMap takes them; only the start hook uses it
}

func newMaps(p params) (pinnedmaps.Maps, pinnedmaps.Batches, pinnedmaps.Copies, pinnedmaps.PreviousLayouts) {
	s := &store{params: p, dir: filepath.Join(p.Agent.PinDir(), "maps")}
	p.Lifecycle.Append(cell.Hook{OnStart: s.start, OnStop: s.stop})
	return s, s, s, s
}

// start opens all maps. A map that cannot be opened does not keep the agent from starting: see the package comment.
func (s *store) start(cell.HookContext) error {
	if err := s.Kernel.Prepare(s.Agent.BPFRoot, s.dir); err != nil {
		return err
	}
	if err := s.unpinUnknown(); err != nil {
		return err
	}
	s.createMissing()
	open := make(map[string]opened, len(s.Specs))
	for _, name := range s.names() {
		open[name] = s.openMap(s.Specs[name])
	}
	s.closeCreated()
	s.beginResize(open)
	s.mu.Lock()
	s.open = open
	s.mu.Unlock()
	s.publishAll()
	failed := s.failures()
	watchdog.Add(s.Jobs, "open-maps", func(ctx context.Context, _ cell.Health) error { return s.retry(ctx, failed) })
	watchdog.AddRetried(s.Jobs, "follow-filled-maps", s.followFilled, firstUnmark, lastUnmark)
	watchdog.AddRetried(s.Jobs, "drop-resized-maps", s.dropResized, firstUnmark, lastUnmark)
	s.addRepin()
	return nil
}

// retry opens failed maps again until all maps are open.
func (s *store) retry(ctx context.Context, failed error) error {
	logged := ""
	for pause := firstRetry; failed != nil; pause = min(2*pause, lastRetry) {
		s.Health.Degraded("maps cannot be used; attached programs stay unchanged", failed)
		if failed.Error() != logged { // once for each reason, not for each try
			logged = failed.Error()
			s.Log.Warn("Maps cannot be used; attached programs stay unchanged", "error", failed)
		}
		if watchdog.Sleep(ctx, pause) != nil {
			return nil
		}
		s.reopen()
		failed = s.failures()
	}
	s.Health.OK(fmt.Sprintf("%d maps", len(s.Specs)))
	return nil
}

func (s *store) reopen() {
	var names []string
	var again []opened
	s.mu.Lock()
	for _, name := range s.names() {
		if s.open[name].err != nil {
			s.open[name] = s.openMap(s.Specs[name])
			names = append(names, name)
		}
	}
	s.beginResize(s.open)
	for _, name := range names {
		again = append(again, s.open[name])
	}
	s.mu.Unlock()
	s.publish(again)
}

// failures joins the errors of all maps that are not open.
func (s *store) failures() error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(s.open)) {
		errs = append(errs, s.open[name].err)
	}
	return errors.Join(errs...)
}

// dropResized moves flows to maps of another size when every hook runs this generation, and removes other maps of another size. Until then programs of both
// generations create entries in the latter, each in its own map, and dropResized exchanges these entries periodically.
func (s *store) dropResized(ctx context.Context, health cell.Health) error {
	began, next, replacing := time.Now(), time.Now(), false
	replaced := loop.Await(ctx, s.DB, loop.Options{Tables: []statedb.TableMeta{s.Attachments}}, func(r *loop.Round) bool {
		r.Watch(s.Attachments)
		if attachments.Replaced(r.Txn, s.Attachments) {
			return true
		}
		if begun := attachments.Begun(r.Txn, s.Attachments); begun != replacing {
			replacing, next = begun, time.Now() // the first hook is being replaced
		}
		if s.hasNext() {
			if left := soonReplaced - time.Since(began); left > 0 {
				r.Within(left)
			} else {
				health.Degraded("maps of flows keep their size until every hook runs this generation; established flows take the slow path meanwhile", errHooks)
			}
		}
		if s.hasResized() {
			if before := time.Now(); !before.Before(next) {
				s.exchangeAll(ctx)
				next = time.Now().Add(exchangePause(replacing, time.Since(before), time.Since(began)))
			}
			r.Within(time.Until(next))
		}
		return false
	})
	if !replaced {
		return nil
	}
	if err := errors.Join(s.dropShadows(ctx), s.endResize(ctx)); err != nil {
		return err
	}
	return s.closeRetired(ctx)
}

// exchangePause returns the pause after an exchange of duration took, at time sinceStart after the start. A flow that begins at a hook of one generation and
// continues at a hook of the other within the pause and the next exchange is not found there. So while hooks are replaced, the pause equals the duration of the
// exchange, which takes half of a CPU. Before that the pause is at least 20 ms, and from soonReplaced on at least 5 s.
func exchangePause(replacing bool, took, sinceStart time.Duration) time.Duration {
	switch {
	case sinceStart >= soonReplaced:
		return max(5*time.Second, 20*took)
	case replacing:
		return took
	}
	return max(20*time.Millisecond, took)
}

func (s *store) hasResized() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, o := range s.open {
		if o.shadow != nil && o.shadow.resized {
			return true
		}
	}
	return false
}

func (s *store) dropShadows(ctx context.Context) error {
	s.exchangeAll(ctx)
	dropped, err := s.unpinShadows()
	s.publish(dropped)
	return err
}

func (s *store) unpinShadows() (dropped []opened, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for name, o := range s.open {
		if o.shadow == nil || !o.shadow.resized {
			continue
		}
		errs = append(errs, s.Kernel.Unpin(o.shadow.pin), s.Kernel.Close(o.shadow.m))
		row := *o.row
		o.shadow, o.row, row.Shadow = nil, &row, ""
		if o.next != nil {
			row.Shadow = s.nextPin(s.Specs[name])
		}
		s.open[name] = o
		dropped = append(dropped, o)
	}
	return dropped, errors.Join(errs...)
}

// exchangeAll exchanges the entries that programs have created in maps of another size since the previous exchange. Entries that cells write are in both maps
// already.
func (s *store) exchangeAll(ctx context.Context) {
	for name := range s.Specs {
		watchdog.Busy(ctx)
		if ctx.Err() != nil {
			return
		}
		s.exchange(name)
	}
}

func (s *store) exchange(name string) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	o := s.open[name]
	if o.shadow == nil || !o.shadow.resized || o.row.Owner != bpfmaps.OwnerDatapath {
		return
	}
	s.copying.Lock()
	defer s.copying.Unlock()
	if err := s.Kernel.Exchange(o.m, o.shadow.m, o.shadow.common); err != nil && !o.shadow.warned {
		o.shadow.warned = true
		s.Log.Warn("Cannot copy all entries between a resized map and its previous map", "map", name, "error", err)
	}
}

func (s *store) publishAll() {
	s.mu.RLock()
	all := slices.Collect(maps.Values(s.open))
	s.mu.RUnlock()
	s.publish(all)
}

// publish writes the current rows of maps, because another job may have changed a row since the caller did. The caller must not hold s.mu.
func (s *store) publish(all []opened) {
	txn := s.DB.WriteTxn(s.Table)
	defer txn.Commit()
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, o := range all {
		now, found := s.open[o.row.Name]
		if have, _, _ := s.Table.Get(txn, bpfmaps.ByName(o.row.Name)); found && now.row != have {
			_, _, _ = s.Table.Insert(txn, now.row)
		}
	}
}

func (s *store) stop(cell.HookContext) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, o := range s.open {
		if o.err == nil {
			errs = append(errs, s.Kernel.Close(o.m))
		}
		if o.shadow != nil {
			errs = append(errs, s.Kernel.Close(o.shadow.m))
		}
		if o.next != nil {
			errs = append(errs, s.Kernel.Close(o.next))
		}
	}
	for _, m := range s.retired {
		errs = append(errs, s.Kernel.Close(m))
	}
	s.open, s.retired = nil, nil
	return errors.Join(errs...)
}

// Get implements [pinnedmaps.Maps].
func (s *store) Get(name string) (*ebpf.Map, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	o, err := s.get(name)
	return o.m, err
}

// get returns an open map. The caller must hold s.mu.
func (s *store) get(name string) (opened, error) {
	if s.open == nil {
		return opened{}, fmt.Errorf("map %s: %w", name, pinnedmaps.ErrNotOpen)
	}
	o, found := s.open[name]
	if !found {
		return opened{}, fmt.Errorf("map %q: %w", name, pinnedmaps.ErrUnknown)
	}
	return o, o.err
}

// Put implements [pinnedmaps.Maps].
func (s *store) Put(name string, key, value any) error {
	return s.put(name, key, value, func(t *shadowMap) error { return t.put(key, value) })
}

// PutPrevious implements [pinnedmaps.PreviousLayouts].
func (s *store) PutPrevious(name string, key, value, previous any) error {
	return s.put(name, key, value, func(t *shadowMap) error {
		if t.resized {
			return t.put(key, value)
		}
		return t.write(key, previous)
	})
}

// put writes an entry, and calls also for the shadow map if there is one.
func (s *store) put(name string, key, value any, also func(*shadowMap) error) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	o, err := s.get(name)
	if err != nil {
		return err
	}
	if err := o.m.Put(key, value); err != nil || o.shadow == nil {
		return err
	}
	return also(o.shadow)
}

// Delete implements [pinnedmaps.Maps].
func (s *store) Delete(name string, key any) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	o, err := s.get(name)
	if err != nil {
		return err
	}
	if o.shadow != nil {
		if err := o.shadow.remove(key, o.m.ValueSize()); err != nil {
			return err
		}
	}
	return o.m.Delete(key)
}

// Each implements [pinnedmaps.Copies].
func (s *store) Each(name string, do func(m *ebpf.Map) error) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	o, err := s.get(name)
	if err != nil {
		return err
	}
	if o.next == nil && (o.shadow == nil || !o.shadow.resized) {
		return do(o.m)
	}
	s.copying.Lock()
	defer s.copying.Unlock()
	err = do(o.m)
	if o.next != nil {
		err = errors.Join(err, do(o.next))
	}
	if o.shadow != nil && o.shadow.resized {
		err = errors.Join(err, do(o.shadow.m))
	}
	return err
}

// All implements [pinnedmaps.Maps].
func (s *store) All() (map[string]*ebpf.Map, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	all := make(map[string]*ebpf.Map, len(s.Specs))
	for name := range s.Specs {
		o, err := s.get(name)
		if err != nil {
			return nil, err
		}
		all[name] = o.m
		if s.isFlows(name) {
			all[bpf.PreviousName(name)] = o.m
		}
		if o.next != nil {
			all[name] = o.next
		}
	}
	return all, nil
}

// Entries implements [pinnedmaps.Maps].
func (s *store) Entries(name string) ([]pinnedmaps.Entry, error) {
	m, err := s.Get(name)
	if err != nil {
		return nil, err
	}
	entries, err := s.Kernel.Dump(m, s.Specs[name].MapSpec)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(entries, func(a, b pinnedmaps.Entry) int { return strings.Compare(a.Key, b.Key) })
	return entries, nil
}

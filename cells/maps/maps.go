package maps

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/bpfmaps"
	"github.com/waggle-net/waggle/pkg/settings"
	mapstable "github.com/waggle-net/waggle/pkg/tables/bpfmaps"
)

// layout is the version in the name of a pin. It rises when a map changes in a way that old programs cannot read.
const layout = "_v1"

// params is what the maps need.
type params struct {
	cell.In

	Log       *slog.Logger
	Health    cell.Health
	Lifecycle cell.Lifecycle
	Agent     settings.Agent
	DB        *statedb.DB
	Table     statedb.RWTable[*mapstable.Map]
	Kernel    kernel
	Specs     specs
}

// opened is one map, or why there is none.
type opened struct {
	m   *ebpf.Map
	err error
}

// store implements [bpfmaps.Maps].
type store struct {
	params
	dir string

	mu   sync.RWMutex      // guards open
	open map[string]opened // nil before the start and after the stop
}

func newMaps(p params) bpfmaps.Maps {
	s := &store{params: p, dir: filepath.Join(p.Agent.PinDir(), "maps")}
	p.Lifecycle.Append(cell.Hook{OnStart: s.start, OnStop: s.stop})
	return s
}

// start opens all maps. A map that cannot be opened does not keep the agent from starting: see the package comment.
func (s *store) start(cell.HookContext) error {
	if err := s.Kernel.Prepare(s.Agent.BPFRoot, s.dir); err != nil {
		return err
	}
	open := make(map[string]opened, len(s.Specs))
	rows := make([]*mapstable.Map, 0, len(s.Specs))
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(s.Specs)) {
		path := filepath.Join(s.dir, name+layout)
		m, reused, err := s.Kernel.Open(s.Specs[name], path)
		row := describe(s.Specs[name], path)
		row.Reused = reused
		if err != nil {
			err = explain(err, path)
			row.Error = err.Error()
			errs = append(errs, err)
		} else {
			row.Memory = s.Kernel.Memory(m)
		}
		open[name] = opened{m, err}
		rows = append(rows, row)
	}
	s.mu.Lock()
	s.open = open
	s.mu.Unlock()
	s.publish(rows)
	s.report(errs)
	return nil
}

func (s *store) publish(rows []*mapstable.Map) {
	txn := s.DB.WriteTxn(s.Table)
	defer txn.Commit()
	for _, row := range rows {
		_, _, _ = s.Table.Insert(txn, row)
	}
}

func (s *store) report(errs []error) {
	if err := errors.Join(errs...); err != nil {
		s.Health.Degraded("Maps cannot be used", err)
		s.Log.Error("Maps cannot be used; programs that are attached stay as they are", "error", err)
		return
	}
	s.Health.OK(fmt.Sprintf("%d maps", len(s.Specs)))
}

func (s *store) stop(cell.HookContext) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, o := range s.open {
		if o.err == nil {
			errs = append(errs, s.Kernel.Close(o.m))
		}
	}
	s.open = nil
	return errors.Join(errs...)
}

// Get implements [bpfmaps.Maps].
func (s *store) Get(name string) (*ebpf.Map, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.open == nil {
		return nil, fmt.Errorf("map %s: %w", name, bpfmaps.ErrNotOpen)
	}
	o, found := s.open[name]
	if !found {
		return nil, fmt.Errorf("map %q: %w", name, bpfmaps.ErrUnknown)
	}
	return o.m, o.err
}

// All implements [bpfmaps.Maps].
func (s *store) All() (map[string]*ebpf.Map, error) {
	all := make(map[string]*ebpf.Map, len(s.Specs))
	for name := range s.Specs {
		m, err := s.Get(name)
		if err != nil {
			return nil, err
		}
		all[name] = m
	}
	return all, nil
}

// Entries implements [bpfmaps.Maps].
func (s *store) Entries(name string) ([]bpfmaps.Entry, error) {
	m, err := s.Get(name)
	if err != nil {
		return nil, err
	}
	entries, err := s.Kernel.Dump(m, s.Specs[name])
	if err != nil {
		return nil, err
	}
	slices.SortFunc(entries, func(a, b bpfmaps.Entry) int { return strings.Compare(a.Key, b.Key) })
	return entries, nil
}

// explain adds what the reader can do.
func explain(err error, path string) error {
	if errors.Is(err, ebpf.ErrMapIncompatible) {
		return fmt.Errorf("use pinned map %s: %w; it was made by another version: drain the node, delete the pin and restart "+
			"the agent, or go back to that version", path, err)
	}
	return err
}

func describe(spec *ebpf.MapSpec, path string) *mapstable.Map {
	return &mapstable.Map{Name: spec.Name, Type: spec.Type.String(), KeySize: spec.KeySize, ValueSize: spec.ValueSize,
		MaxEntries: spec.MaxEntries, Pin: path, Owner: owner(spec.Name)}
}

// owner names the cell that fills a map.
func owner(name string) string {
	switch name {
	case "endpoint_facts", "bpf_links", "bpf_endpoints":
		return "endpoint-maps"
	case "ipcache", "ipcache_prefixes":
		return "ipcache"
	}
	return "datapath"
}

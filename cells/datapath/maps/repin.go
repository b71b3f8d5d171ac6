package maps

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/hive/cell"

	"github.com/waggle-net/waggle/pkg/drift"
	"github.com/waggle-net/waggle/pkg/tables/bpfmaps"
	"github.com/waggle-net/waggle/pkg/tables/driftrepairs"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// addRepin adds the jobs that restore removed pins: at once when the kernel announces the removal, otherwise on a timer. The agent has the maps open, so no
// contents are lost.
func (s *store) addRepin() {
	look := func() (bool, error) { return false, s.repin() }
	watchdog.AddTimer(s.Jobs, "verify-pins", func(context.Context) error { return s.repin() }, s.Drift.Interval)
	next := s.logFirst(s.Kernel.Watch(s.dir))
	watchdog.Add(s.Jobs, "follow-pins", func(ctx context.Context, health cell.Health) error {
		return drift.Follow(ctx, health, next, look)
	})
}

// logFirst logs the first of consecutive errors of a watch. The health of the job shows them all.
func (s *store) logFirst(watch func(context.Context) error) func(context.Context) error {
	failed := false
	return func(ctx context.Context) error {
		err := watch(ctx)
		if err != nil && !failed && ctx.Err() == nil {
			s.Log.Warn("Only the timer notices removals of pins", "error", err)
		}
		failed = err != nil
		return err
	}
}

// repin restores missing pins. It does not verify the maps at existing pins; the next start does.
func (s *store) repin() error {
	have, err := s.Kernel.Pins(s.dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("list the pins in %s: %w", s.dir, err)
	}
	again, err := s.pinMissing(have)
	for _, pin := range again {
		s.Drift.Repairs.Record(driftrepairs.Finding{Kind: driftrepairs.Pin, What: filepath.Base(pin), Found: "missing"})
	}
	return err
}

// pinMissing pins the open maps whose pins are not in have, and returns the paths of the pins that it has restored.
func (s *store) pinMissing(have []string) (again []string, err error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	missing := make(map[string]*ebpf.Map)
	var unfilled []*bpfmaps.Map
	for _, o := range s.open {
		if o.err == nil && !slices.Contains(have, filepath.Base(o.row.Pin)) {
			missing[o.row.Pin] = o.m
			if !o.row.Filled {
				unfilled = append(unfilled, o.row)
			}
		}
		if o.next != nil && !slices.Contains(have, filepath.Base(s.nextPin(s.Specs[o.row.Name]))) {
			missing[s.nextPin(s.Specs[o.row.Name])] = o.next
		}
		if o.shadow != nil && !o.shadow.unpinned && !slices.Contains(have, filepath.Base(o.shadow.pin)) {
			missing[o.shadow.pin] = o.shadow.m
		}
	}
	if len(missing) == 0 {
		return nil, nil
	}
	errs := []error{s.Kernel.Prepare(s.Agent.BPFRoot, s.dir)}
	for _, m := range unfilled { // the whole directory may be missing
		if err := s.mark(m); err != nil {
			errs = append(errs, err)
			delete(missing, m.Pin)
		}
	}
	for pin, m := range missing {
		if err := s.Kernel.Pin(m, pin); err != nil {
			errs = append(errs, fmt.Errorf("pin %s again: %w", pin, err))
			continue
		}
		again = append(again, pin)
	}
	return again, errors.Join(errs...)
}

package loader

import (
	"fmt"
	"log/slog"

	"github.com/cilium/hive/cell"
)

// generation is the programs of this run.
type generation struct {
	log      *slog.Logger
	kernel   kernel
	programs map[string]program // empty when loading failed; set once by the start hook, before any job runs
	err      error              // why loading failed
	number   uint64             // the highest program number; 0 when loading failed
}

func newGeneration(log *slog.Logger, lifecycle cell.Lifecycle, k kernel) *generation {
	g := &generation{log: log, kernel: k}
	lifecycle.Append(cell.Hook{OnStart: g.start, OnStop: g.stop})
	return g
}

// start opens the kernel and loads the programs. That they do not load keeps nobody from starting: the programs of an
// earlier run stay attached, and the rows say what is wrong.
func (g *generation) start(cell.HookContext) error {
	if err := g.kernel.Pods.Open(); err != nil {
		return err
	}
	g.programs, g.err = g.kernel.Programs.Load()
	if g.err != nil {
		g.err = fmt.Errorf("load programs: %w", g.err)
		g.log.Error("Programs cannot be loaded; those of an earlier run stay attached", "error", g.err)
		return nil
	}
	for _, p := range g.programs {
		g.number = max(g.number, uint64(p.ID))
	}
	return nil
}

func (g *generation) stop(cell.HookContext) error {
	g.kernel.Programs.Close()
	g.kernel.Pods.Close()
	return nil
}

// program returns the program of a name, or nil when this run has none.
func (g *generation) program(name string) *program {
	if p, found := g.programs[name]; found {
		return &p
	}
	return nil
}

package celltest

import (
	"testing"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
)

// TestRun_GivesModulesWhatTheAgentGives runs a cell that asks for a health and a job group of its own.
func TestRun_GivesModulesWhatTheAgentGives(t *testing.T) {
	Run(t, "testdata/*.txtar", func(testing.TB) []cell.Cell {
		return []cell.Cell{cell.Module("comb", "Comb", cell.Invoke(func(lc cell.Lifecycle, health cell.Health, _ job.Group) {
			lc.Append(cell.Hook{OnStart: func(cell.HookContext) error { health.OK("buzzing"); return nil }})
		}))}
	})
}

package servicecontroller

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"

	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/script"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/loadbalancer"
	"github.com/waggle-net/waggle/pkg/tables/apiservers"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/nodeaddresses"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/tables/sources"
)

// fakeIDs has the ids of the previous run. The next calls fail while failures is positive.
type fakeIDs struct {
	mu                  sync.Mutex
	frontends, backends map[loadbalancer.Address]uint32
	failures            int
}

func (f *fakeIDs) IDs() (map[loadbalancer.Address]uint32, map[loadbalancer.Address]uint32, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failures > 0 {
		f.failures--
		return nil, nil, errors.New("no map, says the test")
	}
	return f.frontends, f.backends, nil
}

// commands are script commands that set the ids of the previous run.
func (f *fakeIDs) commands() hive.ScriptCmdsOut {
	set := func(into *map[loadbalancer.Address]uint32) func(*script.State, ...string) (script.WaitFunc, error) {
		return func(_ *script.State, args ...string) (script.WaitFunc, error) {
			f.mu.Lock()
			defer f.mu.Unlock()
			*into = map[loadbalancer.Address]uint32{}
			for i := 0; i+1 < len(args); i += 2 {
				a, err := loadbalancer.ParseAddress(args[i])
				if err != nil {
					return nil, err
				}
				var id uint32
				if _, err := fmt.Sscan(args[i+1], &id); err != nil {
					return nil, err
				}
				(*into)[a] = id
			}
			return nil, nil
		}
	}
	return hive.NewScriptCmds(map[string]script.Cmd{
		"earlier/frontends": script.Command(script.CmdUsage{Summary: "set the frontends of the previous run", Args: "(address id)..."}, set(&f.frontends)),
		"earlier/backends":  script.Command(script.CmdUsage{Summary: "set the backends of the previous run", Args: "(address id)..."}, set(&f.backends)),
		"earlier/fails": script.Command(script.CmdUsage{Summary: "have the maps fail", Args: "times"},
			func(_ *script.State, args ...string) (script.WaitFunc, error) {
				f.mu.Lock()
				defer f.mu.Unlock()
				_, err := fmt.Sscan(args[0], &f.failures)
				return nil, err
			}),
	})
}

// inputTables are the tables that the cell reads.
func inputTables() cell.Cell {
	return cell.Provide(
		k8s.NewServiceTable, statedb.RWTable[*k8s.Service].ToTable,
		k8s.NewEndpointSliceTable, statedb.RWTable[*k8s.EndpointSlice].ToTable,
		k8s.NewPodTable, statedb.RWTable[*k8s.Pod].ToTable,
		k8s.NewNodeTable, statedb.RWTable[*k8s.Node].ToTable,
		cilium.NewNodeTable, statedb.RWTable[*cilium.Node].ToTable,
		nodes.NewTable, statedb.RWTable[*nodes.Node].ToTable,
		nodeaddresses.NewTable, statedb.RWTable[nodeaddresses.Address].ToTable,
		apiservers.NewTable, statedb.RWTable[apiservers.Server].ToTable,
		endpoints.NewTable, statedb.RWTable[*endpoints.Endpoint].ToTable,
		sources.NewTable, statedb.RWTable[sources.Source].ToTable,
	)
}

// TestScripts is not parallel: otherwise the time limit of a script would pass while it waits for the model tests.
func TestScripts(t *testing.T) {
	celltest.RunVirtual(t, "testdata/*.txtar", func(t testing.TB) []cell.Cell {
		fake, state := &fakeIDs{}, agentconfig.Agent{StateDir: t.TempDir()}
		return []cell.Cell{
			agentconfig.Cell, inputTables(),
			cell.Provide(func() previousIDs { return fake }, func(log *slog.Logger) *holders { return newHolders(state, log) }, fake.commands),
			cell.Module("services", "Services with their addresses and backends", implementation),
		}
	})
}

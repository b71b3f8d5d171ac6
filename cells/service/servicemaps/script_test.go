package servicemaps

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	upstream "github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/script"
	"github.com/cilium/statedb"
	"go.uber.org/goleak"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/cells/agent/driftledger"
	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/datapath/servicemap"
	"github.com/waggle-net/waggle/pkg/loadbalancer"
	"github.com/waggle-net/waggle/pkg/tables/backends"
	"github.com/waggle-net/waggle/pkg/tables/frontends"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestScripts is not parallel: otherwise the time limit of a script would pass while it waits for the model tests.
func TestScripts(t *testing.T) {
	celltest.Run(t, "testdata/in-*.txtar", scriptCells)
}

// TestScripts_Virtual runs scripts with exact times.
func TestScripts_Virtual(t *testing.T) {
	celltest.RunVirtual(t, "testdata/virtual-*.txtar", scriptCells)
}

func scriptCells(testing.TB) []cell.Cell {
	return []cell.Cell{
		driftledger.Cell,
		agentconfig.Cell,
		cell.Module("inputs", "Tables that other cells write",
			cell.ProvidePrivate(frontends.NewTable, backends.NewTable),
			cell.Provide(newInputs, frontends.NewStatuses, statedb.RWTable[*frontends.Frontend].ToTable,
				statedb.RWTable[*backends.Backend].ToTable),
		),
		cell.Module("service-maps", "Under test",
			cell.ProvidePrivate(func() *fakes { return newFakes(8, 16, 100) }),
			cell.Provide((*fakes).maps),
			implementation,
			cell.Provide(commands),
		),
	}
}

func newInputs(db *statedb.DB, fronts statedb.RWTable[*frontends.Frontend], backs statedb.RWTable[*backends.Backend]) upstream.ScriptCmdOut {
	txn := db.WriteTxn(fronts, backs)
	defer txn.Commit()
	both := []func(statedb.WriteTxn){fronts.RegisterInitializer(txn, "test"), backs.RegisterInitializer(txn, "test")}
	return upstream.NewScriptCmd("inputs/complete", script.Command(script.CmdUsage{Summary: "Complete the tables"},
		func(*script.State, ...string) (script.WaitFunc, error) {
			txn := db.WriteTxn(fronts, backs)
			defer txn.Commit()
			for _, done := range both {
				done(txn)
			}
			return nil, nil
		}))
}

// commands are script commands that inspect and change the fake maps.
func commands(f *fakes) upstream.ScriptCmdsOut {
	simple := func(summary string, run func(args ...string) (string, error)) script.Cmd {
		return script.Command(script.CmdUsage{Summary: summary, Args: "..."}, func(_ *script.State, args ...string) (script.WaitFunc, error) {
			out, err := run(args...)
			return func(*script.State) (string, string, error) { return out, "", err }, nil
		})
	}
	var failures atomic.Int64
	return upstream.NewScriptCmds(map[string]script.Cmd{
		"maps/show": simple("Show what is in force", func(...string) (string, error) { return show(f.maps()) }),
		"maps/fail": simple("Let the next n changes fail", func(args ...string) (string, error) {
			n, err := strconv.ParseInt(args[0], 10, 64)
			failures.Store(n)
			f.fail(func() bool { return failures.Add(-1) >= 0 })
			return "", err
		}),
		"maps/leave": simple("Leave an entry of an earlier run: address id backend-address", func(args ...string) (string, error) {
			a, err1 := loadbalancer.ParseAddress(args[0])
			id, err2 := strconv.ParseUint(args[1], 10, 32)
			b, err3 := loadbalancer.ParseAddress(args[2])
			f.backends.entries[uint32(id)] = bpf.NewBackend(b, 0)
			f.slots.entries[uint32(id)] = uint32(id)
			f.services.entries[bpf.NewServiceKey(a, bpf.ScopeExternal)] = bpf.Service{Id: uint32(id), First: uint32(id), Count: 1}
			return "", errors.Join(err1, err2, err3)
		}),
		"maps/lose": simple("Remove a frontend past the agent: address", func(args ...string) (string, error) {
			a, err := loadbalancer.ParseAddress(args[0])
			f.services.Delete([]bpf.ServiceKey{bpf.NewServiceKey(a, bpf.ScopeExternal)})
			return "", err
		}),
		"maps/writes": simple("Show how many changes there were", func(...string) (string, error) { return fmt.Sprintln(f.writes()), nil }),
	})
}

// show prints the entries in force.
func show(m servicemap.Maps) (string, error) {
	fronts, backs, err := m.Dump()
	var out strings.Builder
	for _, f := range fronts {
		fmt.Fprintf(&out, "%s scope=%d id=%d %v %v", f.Address, f.Scope, f.ID, f.Backends, f.Flags)
		if f.Maglev > 0 {
			fmt.Fprintf(&out, " maglev=%d", f.Maglev)
		}
		if f.Affinity > 0 {
			fmt.Fprintf(&out, " affinity=%d", f.Affinity)
		}
		if f.Ranges != nil {
			fmt.Fprintf(&out, " from=%v", f.Ranges)
		}
		fmt.Fprintln(&out)
	}
	for _, b := range backs {
		fmt.Fprintf(&out, "%d %s local=%v\n", b.ID, b.Address, b.Local)
	}
	return out.String(), err
}

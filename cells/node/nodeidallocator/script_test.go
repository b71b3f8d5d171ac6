package nodeidallocator

import (
	"errors"
	"net/netip"
	"strconv"
	"sync"
	"testing"

	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/script"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/tables/conntrack"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
)

func TestScripts(t *testing.T) {
	t.Parallel()
	celltest.RunVirtual(t, "testdata/*.txtar", func(testing.TB) []cell.Cell { return underTest(newFake()) })
}

// underTest returns the module with a fake kernel, and the tables that the module reads.
func underTest(f *fakeKernel) []cell.Cell {
	return []cell.Cell{agentconfig.Cell, cell.Module("nodeids", "Under test",
		cell.ProvidePrivate(func() kernel { return f }), implementation, cell.Provide(f.command),
	), cell.Provide(
		nodes.NewTable, statedb.RWTable[*nodes.Node].ToTable,
		conntrack.NewTable, statedb.RWTable[conntrack.Map].ToTable,
	)}
}

// fakeKernel is a [kernel] whose ids a script sets.
type fakeKernel struct {
	mu    sync.Mutex
	named map[uint16]bool // nil when the maps cannot be read
	addrs map[netip.Addr]uint16
}

func newFake() *fakeKernel { return &fakeKernel{named: map[uint16]bool{}} }

var errUnreadable = errors.New("maps are not open")

func (f *fakeKernel) Named() (map[uint16]bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.named == nil {
		return nil, errUnreadable
	}
	return f.named, nil
}

func (f *fakeKernel) Addrs() (map[netip.Addr]uint16, error) { return f.addrs, nil }

func (f *fakeKernel) command() hive.ScriptCmdOut {
	return hive.NewScriptCmd("ipcache/names", script.Command(script.CmdUsage{Summary: "Set the ids in entries of ipcache; none: the maps cannot be read", Args: "[id...]"},
		func(_ *script.State, args ...string) (script.WaitFunc, error) {
			var named map[uint16]bool
			if len(args) > 0 {
				named = map[uint16]bool{}
			}
			for _, arg := range args {
				id, err := strconv.ParseUint(arg, 10, 16)
				if err != nil {
					return nil, err
				}
				named[uint16(id)] = true
			}
			f.mu.Lock()
			defer f.mu.Unlock()
			f.named = named
			return nil, nil
		}))
}

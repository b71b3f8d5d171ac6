package sockterm

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"testing"

	upstream "github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/script"
	"github.com/cilium/statedb"
	"go.uber.org/goleak"

	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/loadbalancer"
	"github.com/waggle-net/waggle/pkg/socketlb"
	"github.com/waggle-net/waggle/pkg/tables/backends"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/ipcache"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestScripts(t *testing.T) {
	t.Parallel()
	celltest.Run(t, "testdata/*.txtar", func(testing.TB) []cell.Cell {
		fake := &fakeKernel{sockets: map[string][]loadbalancer.Address{}}
		return []cell.Cell{
			cell.Provide(
				backends.NewTable, statedb.RWTable[*backends.Backend].ToTable,
				endpoints.NewTable, statedb.RWTable[*endpoints.Endpoint].ToTable,
				ipcache.NewTable, statedb.RWTable[*ipcache.Entry].ToTable,
				func() socketlb.Options { return socketlb.Options{Enabled: true} },
				registerSync, // kube/synced
				fake.commands,
			),
			cell.Module("socket-termination", "Under test", cell.ProvidePrivate(func() kernel { return fake }), implementation),
		}
	})
}

// registerSync lets scripts say that all backends are known.
func registerSync(db *statedb.DB, table statedb.RWTable[*backends.Backend]) upstream.ScriptCmdOut {
	txn := db.WriteTxn(table)
	done := table.RegisterInitializer(txn, "test")
	txn.Commit()
	return upstream.NewScriptCmd("kube/synced", script.Command(script.CmdUsage{Summary: "All backends are known"},
		func(*script.State, ...string) (script.WaitFunc, error) {
			txn := db.WriteTxn(table)
			done(txn)
			txn.Commit()
			return nil, nil
		}))
}

// fakeKernel holds connected sockets by namespace; empty is that of the node.
type fakeKernel struct {
	mu      sync.Mutex
	sockets map[string][]loadbalancer.Address
	failing bool
}

func (f *fakeKernel) Open(path string, _ uint64) (namespace, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failing {
		return nil, errors.New("refused by the test")
	}
	if path != "" && f.sockets[path] == nil {
		return nil, fmt.Errorf("%s: %w", path, fs.ErrNotExist)
	}
	return fakeNamespace{f, path}, nil
}

type fakeNamespace struct {
	*fakeKernel
	path string
}

func (fakeNamespace) End() {}

func (f fakeNamespace) Close(p loadbalancer.Protocol, gone func(loadbalancer.Address) bool) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	before := len(f.sockets[f.path])
	f.sockets[f.path] = slices.DeleteFunc(f.sockets[f.path], func(a loadbalancer.Address) bool { return a.Protocol == p && gone(a) })
	return before - len(f.sockets[f.path]), nil
}

func (f *fakeKernel) commands() upstream.ScriptCmdsOut {
	simple := func(summary string, run func(args []string) (string, error)) script.Cmd {
		return script.Command(script.CmdUsage{Summary: summary, Args: "..."}, func(_ *script.State, args ...string) (script.WaitFunc, error) {
			f.mu.Lock()
			defer f.mu.Unlock()
			out, err := run(args)
			return func(*script.State) (string, string, error) { return out, "", nil }, err
		})
	}
	return upstream.NewScriptCmds(map[string]script.Cmd{
		"kernel/connect": simple("Connect a socket: namespace or node, address", func(args []string) (string, error) {
			a, err := loadbalancer.ParseAddress(args[1])
			ns := strings.TrimPrefix(args[0], "node")
			f.sockets[ns] = append(f.sockets[ns], a)
			return "", err
		}),
		"kernel/sockets": simple("List the sockets", func([]string) (string, error) {
			var lines []string
			for ns, sockets := range f.sockets {
				if ns == "" {
					ns = "node"
				}
				for _, a := range sockets {
					lines = append(lines, ns+" "+a.String()+"\n")
				}
			}
			slices.Sort(lines)
			return strings.Join(lines, ""), nil
		}),
		"kernel/fail": simple("Refuse everything, or nothing", func(args []string) (string, error) {
			f.failing = len(args) > 0
			return "", nil
		}),
	})
}

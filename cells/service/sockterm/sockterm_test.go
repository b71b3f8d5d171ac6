package sockterm

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	upstream "github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/script"
	"github.com/cilium/statedb"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/loadbalancer"
	"github.com/waggle-net/waggle/pkg/podns"
	"github.com/waggle-net/waggle/pkg/socketlboptions"
	"github.com/waggle-net/waggle/pkg/tables/backends"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/frontends"
	"github.com/waggle-net/waggle/pkg/tables/ipcache"
	"github.com/waggle-net/waggle/pkg/tables/services"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestScripts(t *testing.T) {
	t.Parallel()
	celltest.RunVirtual(t, "testdata/*.txtar", cells)
}

func cells(testing.TB) []cell.Cell {
	fake := &fakeKernel{}
	return []cell.Cell{
		cell.Provide(
			backends.NewTable, statedb.RWTable[*backends.Backend].ToTable,
			endpoints.NewTable, statedb.RWTable[*endpoints.Endpoint].ToTable,
			frontends.NewTable, statedb.RWTable[*frontends.Frontend].ToTable,
			ipcache.NewTable, statedb.RWTable[*ipcache.Entry].ToTable,
			services.NewTable, statedb.RWTable[*services.Service].ToTable,
			func() socketlboptions.Options { return socketlboptions.Options{Enabled: true} },
			registerSync, // kube/synced
			fake.commands,
		),
		cell.Module("socket-termination", "Under test", cell.ProvidePrivate(func() kernel { return fake }), implementation),
	}
}

// registerSync provides a script command that marks all services as known.
func registerSync(db *statedb.DB, b statedb.RWTable[*backends.Backend], f statedb.RWTable[*frontends.Frontend]) upstream.ScriptCmdOut {
	txn := db.WriteTxn(b, f)
	backendsDone, frontendsDone := b.RegisterInitializer(txn, "test"), f.RegisterInitializer(txn, "test")
	txn.Commit()
	return upstream.NewScriptCmd("kube/synced", script.Command(script.CmdUsage{Summary: "All services are known"},
		func(*script.State, ...string) (script.WaitFunc, error) {
			txn := db.WriteTxn(b, f)
			backendsDone(txn)
			frontendsDone(txn)
			txn.Commit()
			return nil, nil
		}))
}

// fakeSocket is a socket in a network namespace; inode 0 is the node's namespace.
type fakeSocket struct {
	inode uint64
	socket
}

// fakeKernel holds sockets that programs have connected to backends. Namespace 6 does not exist any more.
type fakeKernel struct {
	mu      sync.Mutex
	sockets []fakeSocket
	failing string        // failing operation: all, pods (each one), namespaces (lack of a capability), or datagrams (their list)
	stall   time.Duration // duration of the next listing
	coming  *fakeSocket   // connected by the next listing, with its backend
	cookies uint64        // number of assigned cookies

	db       *statedb.DB
	backends statedb.RWTable[*backends.Backend]
}

func (f *fakeKernel) Load() (list, error) { return f, nil }

func (*fakeKernel) Close() {}

func (f *fakeKernel) Open(path string, inode uint64) (namespace, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.failing == "namespaces" && inode != 0:
		return nil, fmt.Errorf("enter %s: %w", path, unix.EPERM)
	case inode == 6:
		return nil, fmt.Errorf("%s: %w", path, podns.ErrGone)
	}
	return fakeNamespace{f, path, inode}, nil
}

type fakeNamespace struct {
	*fakeKernel
	path  string
	inode uint64
}

func (n fakeNamespace) Connected() (list []socket, err error) {
	n.mu.Lock()
	stall := n.stall
	n.stall = 0
	n.mu.Unlock()
	time.Sleep(stall)
	n.mu.Lock()
	defer n.mu.Unlock()
	if s := n.coming; s != nil {
		n.coming = nil
		txn := n.db.WriteTxn(n.backends)
		_, _, err := n.backends.Insert(txn, &backends.Backend{Address: s.Backend, ID: 99, State: backends.Active})
		txn.Commit()
		if err != nil {
			return nil, err
		}
		n.sockets = append(n.sockets, *s)
	}
	if n.failing == "datagrams" {
		err = errors.New("list the sockets of protocol 17: refused by the test")
	}
	for _, s := range n.sockets {
		if s.inode == n.inode && (err == nil || s.Backend.Protocol != loadbalancer.UDP) {
			list = append(list, s.socket)
		}
	}
	return list, err
}

func (n fakeNamespace) Terminate(s *socket) (bool, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.failing == "all" || n.failing == "pods" && n.inode != 0 {
		return false, fmt.Errorf("close sockets at %q: refused by the test", n.path)
	}
	before := len(n.sockets)
	n.sockets = slices.DeleteFunc(n.sockets, func(other fakeSocket) bool {
		return other.inode == n.inode && other.diag.Cookie == s.diag.Cookie
	})
	return len(n.sockets) < before, nil
}

func (fakeNamespace) Close() {}

func (f *fakeKernel) commands(db *statedb.DB, b statedb.RWTable[*backends.Backend]) upstream.ScriptCmdsOut {
	f.db, f.backends = db, b
	simple := func(summary string, run func(args []string) (string, error)) script.Cmd {
		return script.Command(script.CmdUsage{Summary: summary, Args: "..."}, func(_ *script.State, args ...string) (script.WaitFunc, error) {
			f.mu.Lock()
			defer f.mu.Unlock()
			out, err := run(args)
			return func(*script.State) (string, string, error) { return out, "", nil }, err
		})
	}
	return upstream.NewScriptCmds(map[string]script.Cmd{
		"kernel/connect": simple("Connect a socket: inode of its namespace, service, backend", func(args []string) (string, error) {
			s, err := f.parse(args)
			f.sockets = append(f.sockets, s)
			return "", err
		}),
		"kernel/coming": simple("The next listing meets such a socket, whose backend comes meanwhile", func(args []string) (string, error) {
			s, err := f.parse(args)
			f.coming = &s
			return "", err
		}),
		"kernel/stall": simple("The next listing takes that long", func(args []string) (_ string, err error) {
			f.stall, err = time.ParseDuration(args[0])
			return "", err
		}),
		"kernel/sockets": simple("List the sockets", func([]string) (string, error) {
			var lines []string
			for _, s := range f.sockets {
				lines = append(lines, fmt.Sprintf("%d %s %s\n", s.inode, s.Service, s.Backend))
			}
			slices.Sort(lines)
			return strings.Join(lines, ""), nil
		}),
		"kernel/fail": simple("Refuse: all, pods, namespaces, datagrams, none", func(args []string) (string, error) {
			f.failing = args[0]
			return "", nil
		}),
	})
}

func (f *fakeKernel) parse(args []string) (s fakeSocket, err error) {
	var errs [3]error
	s.inode, errs[0] = strconv.ParseUint(args[0], 10, 64)
	s.Service, errs[1] = loadbalancer.ParseAddress(args[1])
	s.Backend, errs[2] = loadbalancer.ParseAddress(args[2])
	f.cookies++
	s.diag.Cookie = f.cookies
	return s, errors.Join(errs[:]...)
}

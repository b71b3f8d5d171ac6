package endpointmanager

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"sync"
	"testing"

	"github.com/cilium/hive/hivetest"
	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/endpoint"
	"github.com/waggle-net/waggle/pkg/ipam"
	"github.com/waggle-net/waggle/pkg/mac"
	"github.com/waggle-net/waggle/pkg/tables/driftrepairs"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/endpointstates"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
	"github.com/waggle-net/waggle/pkg/tables/sources"
)

// fakeAllocator implements the claims of [ipam.Allocator]: all or none, and released only by their owner.
type fakeAllocator struct {
	mu       sync.Mutex
	claimed  map[netip.Addr]string // address -> attachment
	rejected map[netip.Addr]bool   // claims of these addresses fail
	released int
	open     bool // RestoreDone was called
}

func newAllocator() *fakeAllocator {
	return &fakeAllocator{claimed: map[netip.Addr]string{}, rejected: map[netip.Addr]bool{}}
}

var errUnused = errors.New("not used by this cell")

func (*fakeAllocator) Next(context.Context, ipam.Request) (ipam.Result, error) {
	return ipam.Result{}, errUnused
}
func (*fakeAllocator) Specific(context.Context, netip.Addr, string, string) error { return errUnused }

func (a *fakeAllocator) Claim(claims []ipam.Claim) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.open {
		return errors.New("claimed before everything was restored")
	}
	return a.take(claims)
}

func (a *fakeAllocator) take(claims []ipam.Claim) error {
	for _, c := range claims {
		if _, taken := a.claimed[c.Addr]; taken || a.rejected[c.Addr] {
			return fmt.Errorf("claim %s: %w", c.Addr, ipam.ErrTaken)
		}
	}
	for _, c := range claims {
		a.claimed[c.Addr] = c.Attachment
	}
	return nil
}

func (a *fakeAllocator) Restore(claims []ipam.Claim) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.open {
		return errors.New("restored too late")
	}
	return a.take(claims)
}

func (a *fakeAllocator) Release(addr netip.Addr, _, attachment string) (bool, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	owner, found := a.claimed[addr]
	if !found {
		return false, nil
	}
	if owner != attachment {
		return true, ipam.ErrInUse
	}
	delete(a.claimed, addr)
	a.released++
	return true, nil
}

func (a *fakeAllocator) RestoreDone() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.open = true
}

func (a *fakeAllocator) ownerOf(addr string) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.claimed[netip.MustParseAddr(addr)]
}

func (a *fakeAllocator) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.claimed)
}

// fakeKernel has the links and namespaces that tests set.
type fakeKernel struct {
	mu    sync.Mutex
	names map[int]string
	macs  map[int]mac.Addr
	sees  map[string]observation // by path
	run   string
	err   error
}

func (k *fakeKernel) links() (links, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	all := links{}
	for index, name := range k.names {
		all[index] = link{name, k.macs[index]}
	}
	return all, k.err
}

func (k *fakeKernel) namespace(path string) observation {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.sees[path]
}

func (k *fakeKernel) boot() string { return k.run }

// repairs collects the recorded findings.
type repairs struct{ found []driftrepairs.Finding }

func (r *repairs) Record(findings ...driftrepairs.Finding) { r.found = append(r.found, findings...) }

// rig is a manager with real tables and files, and fakes for other cells and the kernel.
type rig struct {
	*manager
	addresses *fakeAllocator
	states    statedb.RWTable[*endpointstates.EndpointState]
	pods      statedb.RWTable[*k8s.Pod]
	spaces    statedb.RWTable[*k8s.Namespace]
	nodes     statedb.RWTable[*localnode.LocalNode]
	sources   statedb.RWTable[sources.Source]
	done      initialize
}

// newRig creates a manager over dir without starting it.
func newRig(t testing.TB, dir string) *rig {
	t.Helper()
	db := statedb.New()
	table, done, err := newTable(db)
	require.NoError(t, err)
	states, err := endpointstates.NewTable(db)
	require.NoError(t, err)
	pods, err := k8s.NewPodTable(db)
	require.NoError(t, err)
	spaces, err := k8s.NewNamespaceTable(db)
	require.NoError(t, err)
	nodes, err := localnode.NewTable(db)
	require.NoError(t, err)
	readings, err := sources.NewTable(db)
	require.NoError(t, err)
	insert(t, db, readings, sources.Source{Table: pods.Name(), Producer: "manifests", State: sources.Synced})
	insert(t, db, readings, sources.Source{Table: spaces.Name(), Producer: "manifests", State: sources.Synced})
	addresses := newAllocator()
	r := &rig{addresses: addresses, states: states, pods: pods, spaces: spaces, nodes: nodes, sources: readings, done: done,
		manager: newManager(params{
			Log: hivetest.Logger(t, hivetest.LogLevel(slog.LevelError)), DB: db,
			Settings: agentconfig.Agent{StateDir: dir}, Addresses: addresses,
			Endpoints: table, States: states, Pods: pods, Namespaces: spaces, Node: nodes, Sources: readings, Kernel: &fakeKernel{},
		})}
	t.Cleanup(r.closeLabels) // inside the synctest bubble of the test, if it has one
	return r
}

// started creates a manager and restores the files of dir. Each of their links exists.
func started(t testing.TB, dir string) *rig {
	t.Helper()
	r := newRig(t, dir)
	r.kernel = &fakeKernel{names: allLinks()}
	require.NoError(t, r.restore(r.done))
	return r
}

// allLinks returns the links of the endpoints 1 to 300.
func allLinks() map[int]string {
	names := map[int]string{}
	for n := range 300 {
		names[n] = hostName(n)
	}
	return names
}

func (r *rig) setState(t testing.TB, s *endpointstates.EndpointState) {
	t.Helper()
	txn := r.db.WriteTxn(r.states)
	defer txn.Abort()
	_, _, err := r.states.Insert(txn, s)
	require.NoError(t, err)
	txn.Commit()
}

// rows returns all endpoints.
func (r *rig) rows() (list []*endpoints.Endpoint) {
	for ep := range r.endpoints.All(r.db.ReadTxn()) {
		list = append(list, ep)
	}
	return list
}

func (r *rig) fileNames(t testing.TB) (names []string) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(r.files.Dir(), "*.json"))
	require.NoError(t, err)
	for _, p := range paths {
		names = append(names, filepath.Base(p))
	}
	return names
}

// requireEmpty checks that no row, file or claim of an endpoint is left.
func (r *rig) requireEmpty(t testing.TB) {
	t.Helper()
	require.Empty(t, r.rows())
	require.Empty(t, r.fileNames(t))
	require.Zero(t, r.addresses.count())
}

func hostName(n int) string { return fmt.Sprintf("lxc%012x", n) }

// request returns the request of endpoint n, which conflicts with the request of no other number.
func request(n int) endpoint.Request {
	return endpoint.Request{
		ContainerID: fmt.Sprintf("container-%d", n), IfName: "eth0", NetnsPath: "/var/run/netns/x",
		HostIfName: hostName(n), HostIfIndex: n, HostMAC: mac.Addr{2, 1}, PodMAC: mac.Addr{2, 2},
		IPv4: netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)}), IPv6: netip.MustParseAddr(fmt.Sprintf("fd00::%x", n)),
		K8sNamespace: "default", K8sPodName: fmt.Sprintf("pod-%d", n), K8sUID: fmt.Sprintf("uid-%d", n),
	}
}

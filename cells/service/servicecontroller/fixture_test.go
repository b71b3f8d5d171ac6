package servicecontroller

import (
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/loadbalancer"
	"github.com/waggle-net/waggle/pkg/tables/apiservers"
	"github.com/waggle-net/waggle/pkg/tables/backends"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/frontends"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/nodeaddresses"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/tables/services"
	"github.com/waggle-net/waggle/pkg/tables/sources"
)

// bench is the cell's loop without its goroutine, over tables that a test fills.
type bench struct {
	t     testing.TB
	c     *controller
	db    *statedb.DB
	svcs  statedb.RWTable[*k8s.Service]
	slcs  statedb.RWTable[*k8s.EndpointSlice]
	pods  statedb.RWTable[*k8s.Pod]
	nodes statedb.RWTable[*k8s.Node]
	rows  statedb.RWTable[*nodes.Node]
	addrs statedb.RWTable[nodeaddresses.Address]
	eps   statedb.RWTable[*endpoints.Endpoint]
	srcs  statedb.RWTable[sources.Source]
	apis  statedb.RWTable[apiservers.Server]

	commits *commits
	had     map[string]string // owner of each address at the last call of naive
}

// commits calls functions after each commit of the cell.
type commits struct {
	statedb.NopMetrics
	onCommit func()
	took     func(time.Duration) // called with the time for which the tables were locked
}

// WriteTxnDuration implements statedb.Metrics. Readers see the commit when it is called.
func (c *commits) WriteTxnDuration(_ string, tables []string, took time.Duration) {
	if !slices.Contains(tables, "frontends") {
		return
	}
	if c.onCommit != nil {
		c.onCommit()
	}
	if c.took != nil {
		c.took(took)
	}
}

var plain = agentconfig.Agent{EnableIPv4: true, EnableIPv6: true, NodeName: "one", KubeProxyReplacement: true, NodePortMin: 30000, NodePortMax: 32767, HealthPort: 4240,
	TunnelPort: 8472}

func newBench(t testing.TB, config Config, previous *fakeIDs) *bench {
	t.Helper()
	seen := &commits{}
	db := statedb.New(statedb.WithMetrics(seen))
	b := &bench{t: t, db: db, commits: seen}
	table := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	var err error
	b.svcs, err = k8s.NewServiceTable(db)
	table(err)
	b.slcs, err = k8s.NewEndpointSliceTable(db)
	table(err)
	b.pods, err = k8s.NewPodTable(db)
	table(err)
	b.nodes, err = k8s.NewNodeTable(db)
	table(err)
	b.rows, err = nodes.NewTable(db)
	table(err)
	b.addrs, err = nodeaddresses.NewTable(db)
	table(err)
	b.eps, err = endpoints.NewTable(db)
	table(err)
	b.srcs, err = sources.NewTable(db)
	table(err)
	b.apis, err = apiservers.NewTable(db)
	table(err)
	others, err := cilium.NewNodeTable(db)
	table(err)
	s, err := services.NewTable(db)
	table(err)
	f, err := frontends.NewTable(db)
	table(err)
	be, err := backends.NewTable(db)
	table(err)
	r, err := newRules(config, plain, agentconfig.Listeners{All: []agentconfig.Listener{{Port: 9962, Flag: "prometheus-serve-addr"}}})
	table(err)
	if err := db.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Stop() })
	b.c = newController(params{Log: slog.New(slog.DiscardHandler), DB: db, Rules: r, Earlier: previous, Holders: newHolders(agentconfig.Agent{StateDir: t.TempDir()}, slog.New(slog.DiscardHandler)), KubernetesServices: b.svcs, Slices: b.slcs, Pods: b.pods, Nodes: b.nodes,
		CiliumNodes: others, Cluster: b.rows, NodeAddresses: b.addrs, APIServers: b.apis, Endpoints: b.eps, Sources: b.srcs, Services: s, Frontends: f, Backends: be, Initialize: newInitialize(db, s, f, be)})
	return b
}

// state sets the state of the sources of all objects.
func (b *bench) state(s sources.State) {
	txn := b.db.WriteTxn(b.srcs)
	defer txn.Commit()
	for _, name := range []string{"k8s-services", "k8s-endpointslices", "k8s-pods", "k8s-nodes"} {
		put(b, txn, b.srcs, sources.Source{Table: name, State: s})
	}
}

func put[R any](b *bench, txn statedb.WriteTxn, t statedb.RWTable[R], row R) {
	if _, _, err := t.Insert(txn, row); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) insert(rows ...any) {
	b.t.Helper()
	txn := b.db.WriteTxn(b.svcs, b.slcs, b.pods, b.nodes, b.rows, b.addrs, b.eps, b.apis)
	defer txn.Commit()
	for _, row := range rows {
		b.insertObject(txn, row)
	}
}

func (b *bench) insertObject(txn statedb.WriteTxn, row any) {
	switch r := row.(type) {
	case *k8s.Service:
		put(b, txn, b.svcs, r)
	case apiservers.Server:
		put(b, txn, b.apis, r)
	case *k8s.EndpointSlice:
		put(b, txn, b.slcs, r)
	case *k8s.Pod:
		put(b, txn, b.pods, r)
	case *k8s.Node:
		put(b, txn, b.nodes, r)
		put(b, txn, b.rows, rowOf(r))
	case nodeaddresses.Address:
		put(b, txn, b.addrs, r)
	case *endpoints.Endpoint:
		put(b, txn, b.eps, r)
	default:
		b.t.Fatalf("a %T", row)
	}
}

// rowOf returns the row of the table nodes of a Node whose claims are all accepted.
func rowOf(n *k8s.Node) *nodes.Node {
	row := &nodes.Node{Name: n.Name}
	for _, text := range n.PodCIDRs {
		row.CIDRs = append(row.CIDRs, netip.MustParsePrefix(text))
	}
	for _, a := range n.Addresses {
		row.Addresses = append(row.Addresses, nodes.Address{Type: a.Type, Addr: netip.MustParseAddr(a.Address)})
	}
	return row
}

func (b *bench) remove(row any) {
	b.t.Helper()
	txn := b.db.WriteTxn(b.svcs, b.slcs, b.pods, b.nodes, b.rows, b.addrs, b.eps)
	defer txn.Commit()
	var err error
	switch r := row.(type) {
	case *k8s.Service:
		_, _, err = b.svcs.Delete(txn, r)
	case *k8s.EndpointSlice:
		_, _, err = b.slcs.Delete(txn, r)
	case *k8s.Pod:
		_, _, err = b.pods.Delete(txn, r)
	case *k8s.Node:
		_, _, err1 := b.nodes.Delete(txn, r)
		_, _, err2 := b.rows.Delete(txn, rowOf(r))
		err = errors.Join(err1, err2)
	case nodeaddresses.Address:
		_, _, err = b.addrs.Delete(txn, r)
	case *endpoints.Endpoint:
		_, _, err = b.eps.Delete(txn, r)
	default:
		b.t.Fatalf("a %T", row)
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

// step makes passes until all changes are handled.
func (b *bench) step() (done tally) {
	b.t.Helper()
	for {
		one := b.pass()
		done.models, done.endpoints = done.models+one.models, done.endpoints+one.endpoints
		if one.left == 0 {
			return done
		}
	}
}

// pass makes one pass of the loop.
func (b *bench) pass() (done tally) {
	b.t.Helper()
	if err := b.c.restore(); err != nil {
		b.t.Fatal(err)
	}
	txn, changed := b.db.ReadTxn(), statedb.NewWatchSet()
	b.c.read(txn, changed)
	if b.c.in.waiting(txn, changed) != "" {
		return tally{}
	}
	done, err := b.c.pass(txn, changed)
	if err != nil {
		b.t.Fatal(err)
	}
	if err := b.c.Holders.keep(b.db.ReadTxn(), b.c); err != nil {
		b.t.Fatal(err)
	}
	return done
}

// written counts the rows that passes have written or removed, and their commits.
type written struct{ services, frontends, backends, commits int }

// counted makes the passes that are due and counts the rows that they write.
func (b *bench) counted() (done tally, rows written) {
	b.t.Helper()
	revisions := func() [3]int {
		txn := b.db.ReadTxn()
		return [3]int{int(b.c.Services.Revision(txn)), int(b.c.Frontends.Revision(txn)), int(b.c.Backends.Revision(txn))}
	}
	before := revisions()
	b.commits.onCommit = func() { rows.commits++ }
	done = b.step()
	b.commits.onCommit = nil
	after := revisions()
	rows.services, rows.frontends, rows.backends = after[0]-before[0], after[1]-before[1], after[2]-before[2]
	return done, rows
}

func at(text string) loadbalancer.Address {
	a, err := loadbalancer.ParseAddress(text)
	if err != nil {
		panic(err)
	}
	return a
}

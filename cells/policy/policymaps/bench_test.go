package policymaps

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/labels"
	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/policy/policyenvironment"
	"github.com/waggle-net/waggle/pkg/tables/bpfendpoints"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/endpointpolicies"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/identities"
	"github.com/waggle-net/waggle/pkg/tables/ipcache"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/namedcidrs"
	"github.com/waggle-net/waggle/pkg/tables/nodeaddresses"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/tables/policies"
	"github.com/waggle-net/waggle/pkg/tables/policyclasses"
	"github.com/waggle-net/waggle/pkg/tables/policyentries"
	"github.com/waggle-net/waggle/pkg/tables/policyprogress"
	"github.com/waggle-net/waggle/pkg/tables/sources"
)

// bench is a controller with its tables and with fake maps.
type bench struct {
	*controller
	endpoints  statedb.RWTable[*endpoints.Endpoint]
	identities statedb.RWTable[*identities.Identity]
	of         statedb.RWTable[*identities.EndpointIdentity]
	facts      statedb.RWTable[*bpfendpoints.Facts]
}

// must returns a new table.
func must[R any](b testing.TB, make func(*statedb.DB) (statedb.RWTable[R], error), db *statedb.DB) statedb.RWTable[R] {
	b.Helper()
	table, err := make(db)
	require.NoError(b, err)
	return table
}

func put[R any](b testing.TB, db *statedb.DB, table statedb.RWTable[R], rows ...R) {
	b.Helper()
	txn := db.WriteTxn(table)
	defer txn.Commit()
	for _, row := range rows {
		_, _, err := table.Insert(txn, row)
		require.NoError(b, err)
	}
}

func labelsOf(app, namespace int) map[string]string {
	return map[string]string{"k8s:app": fmt.Sprint("app-", app), "k8s:io.kubernetes.pod.namespace": fmt.Sprint("ns-", namespace)}
}

// newBench returns a controller with n endpoints in ten namespaces, an identity for each endpoint, and m policies in each namespace.
func newBench(b testing.TB, n, m int) *bench {
	b.Helper()
	db := statedb.New()
	filter, err := labels.NewFilter(nil, nil)
	require.NoError(b, err)
	fake := newFake()
	fake.capacity = capacity{1 << 20, 1 << 18}
	w := &bench{endpoints: must(b, endpoints.NewTable, db), identities: must(b, identities.NewTable, db),
		of: must(b, identities.NewEndpointTable, db), facts: must(b, bpfendpoints.NewFactsTable, db)}
	kubernetes, tables := must(b, k8s.NewNetworkPolicyTable, db), must(b, sources.NewTable, db)
	published := must(b, endpointpolicies.NewTable, db)
	w.controller = newController(params{DB: db, Config: DefaultConfig,
		Inputs: policyenvironment.Inputs{Options: policy.Options{Mode: policy.Default, AllowLocalhost: true}, Agent: agentconfig.Agent{EnableIPv4: true, EnableIPv6: true}, Filter: filter,
			Slices: must(b, k8s.NewEndpointSliceTable, db), NodeAddresses: must(b, nodeaddresses.NewTable, db), CIDRGroups: must(b, cilium.NewCIDRGroupTable, db),
			Services: must(b, k8s.NewServiceTable, db), Sources: tables}, Entries: fakeEntries{fake}, CIDRs: fakeCIDRs{fake}, Numbers: fakeIdentities{fake}, Classes: fakeClasses{fake},
		KubernetesPolicies: kubernetes, CiliumPolicies: must(b, cilium.NewPolicyTable, db), Namespaces: must(b, k8s.NewNamespaceTable, db),
		Pods: must(b, k8s.NewPodTable, db), Remote: must(b, cilium.NewEndpointTable, db),
		IPCache: must(b, ipcache.NewTable, db), KubernetesNodes: must(b, k8s.NewNodeTable, db), CiliumNodes: must(b, cilium.NewNodeTable, db), Nodes: must(b, nodes.NewTable, db),
		CiliumIdentities: must(b, cilium.NewIdentityTable, db), Sources: tables,
		Identities: w.identities, Of: w.of, Endpoints: w.endpoints, Facts: w.facts,
		Attachments: must(b, newAttachments, db), Policies: must(b, policies.NewTable, db),
		Compiled: must(b, policyentries.NewTable, db), Named: must(b, namedcidrs.NewTable, db), Published: published,
		ClassTable: must(b, policyclasses.NewTable, db), Progress: must(b, policyprogress.NewTable, db), Initialize: newInitialize(db, published)})
	for _, name := range []string{"k8s-networkpolicies", "cilium-networkpolicies", "cilium-cidrgroups", "k8s-services", "k8s-endpointslices", "k8s-namespaces"} {
		put(b, db, tables, sources.Source{Table: name, State: sources.Synced})
	}
	put(b, db, w.identities, &identities.Identity{ID: 1, Labels: map[string]string{"reserved:host": ""}})
	for i := range n {
		w.add(b, i)
	}
	for i := range 10 * m {
		put(b, db, kubernetes, &k8s.NetworkPolicy{Namespace: fmt.Sprint("ns-", i%10), Name: fmt.Sprint("p-", i), IsIngress: true,
			PodSelector: k8s.Selector{MatchLabels: map[string]string{"app": fmt.Sprint("app-", i)}},
			Ingress: []k8s.PolicyRule{{Peers: []k8s.Peer{{Pods: &k8s.Selector{}}},
				Ports: []k8s.PolicyPort{{Protocol: "TCP", Port: "80"}, {Protocol: "TCP", Port: fmt.Sprint(1000 + i)}}}}})
	}
	require.NoError(b, w.restore())
	b.Cleanup(w.in.close)
	w.step(b)
	return w
}

// add adds an endpoint with an identity of its own.
func (w *bench) add(b testing.TB, i int) {
	b.Helper()
	id, all := uint16(i+1), labelsOf(i, i%10)
	put(b, w.DB, w.identities, &identities.Identity{ID: uint32(256 + i), Labels: all})
	put(b, w.DB, w.of, &identities.EndpointIdentity{EndpointID: id, Attachment: fmt.Sprint(i, ":eth0"), Identity: uint32(256 + i), Labels: all})
	put(b, w.DB, w.endpoints, &endpoints.Endpoint{ID: id, ContainerID: fmt.Sprint(i), IfName: "eth0", HostIfIndex: i + 1, Labels: all})
}

// step runs rounds until the datapath has applied everything.
func (w *bench) step(b testing.TB) {
	b.Helper()
	for range 3 {
		txn := w.DB.ReadTxn()
		w.problems = nil
		w.in.read(txn, statedb.NewWatchSet(), time.Now())
		w.pass(txn, statedb.NewWatchSet())
		require.Empty(b, w.problems)
		for row := range w.Published.All(w.DB.ReadTxn()) {
			f := &bpfendpoints.Facts{ID: row.EndpointID, IfIndex: uint32(row.EndpointID), Identity: row.Identity, Ingress: row.Ingress,
				Egress: row.Egress, PolicyRevision: row.Revision, Status: reconciler.StatusDone()}
			if old, _, found := w.facts.Get(w.DB.ReadTxn(), bpfendpoints.FactsByID(f.ID)); !found || !old.Equal(f) {
				put(b, w.DB, w.facts, f)
			}
		}
	}
}

// BenchmarkAdd measures one round on the path of an ADD, until the endpoint has its policy, with 250 endpoints and 500 policies: for an endpoint with the
// labels of another one, and for an endpoint with an identity that every policy of its namespace must know.
func BenchmarkAdd(b *testing.B) {
	for name, fresh := range map[string]bool{"known identity": false, "new identity": true} {
		b.Run(name, func(b *testing.B) {
			w := newBench(b, 250, 50)
			i := 250
			for b.Loop() {
				b.StopTimer()
				if fresh {
					w.add(b, i)
				} else {
					put(b, w.DB, w.of, &identities.EndpointIdentity{EndpointID: uint16(i + 1), Attachment: fmt.Sprint(i, ":eth0"), Identity: 256})
					put(b, w.DB, w.endpoints, &endpoints.Endpoint{ID: uint16(i + 1), ContainerID: fmt.Sprint(i), IfName: "eth0", HostIfIndex: i + 1,
						Labels: labelsOf(0, 0)})
				}
				txn := w.DB.ReadTxn()
				b.StartTimer()
				w.in.read(txn, statedb.NewWatchSet(), time.Now())
				w.pass(txn, statedb.NewWatchSet())
				b.StopTimer()
				row, _, found := w.Published.Get(w.DB.ReadTxn(), endpointpolicies.ByEndpoint(uint16(i+1)))
				require.True(b, found && row.Error == "", "%+v", row)
				w.step(b)
				txn2 := w.DB.WriteTxn(w.endpoints, w.of)
				_, _, _ = w.endpoints.Delete(txn2, &endpoints.Endpoint{ID: uint16(i + 1)})
				_, _, _ = w.of.Delete(txn2, &identities.EndpointIdentity{EndpointID: uint16(i + 1)})
				txn2.Commit()
				w.step(b)
				i = 250 + (i-249)%3000
				b.StartTimer()
			}
		})
	}
}

// BenchmarkNamedPorts measures the rounds while a rule names a port of peers, in a cluster with 20,000 pods of 500 identities on other nodes: when the rule
// is added and all pods are read, when one more pod is added, and when a node gets another address.
func BenchmarkNamedPorts(b *testing.B) {
	const pods, apps = 20000, 500
	w := newBench(b, 250, 5)
	remote, cache := w.Remote.(statedb.RWTable[*cilium.Endpoint]), w.IPCache.(statedb.RWTable[*ipcache.Entry])
	nodeName := func(i int) string { return fmt.Sprint("node-", byte(i)) }
	for i := range 256 {
		put(b, w.DB, w.Nodes.(statedb.RWTable[*nodes.Node]), &nodes.Node{Name: nodeName(i),
			Addresses: []nodes.Address{{Type: nodes.InternalIP, Addr: netip.AddrFrom4([4]byte{192, 168, 0, byte(i)})}}})
	}
	far := func(i int) (*cilium.Endpoint, *ipcache.Entry) {
		addr, node := netip.AddrFrom4([4]byte{10, 2, byte(i >> 8), byte(i)}), netip.AddrFrom4([4]byte{192, 168, 0, byte(i)})
		o := cilium.EndpointFields{Namespace: "far", Name: fmt.Sprint(i), Identity: uint32(1000 + i%apps), Node: node, Addrs: []netip.Addr{addr}}
		if i%apps < 10 {
			o.Ports = []k8s.ContainerPort{{Name: "web", Protocol: "TCP", Number: 80}}
		}
		return cilium.NewEndpoint(o), ipcache.NewEntry(ipcache.Claim{Prefix: netip.PrefixFrom(addr, 32), Identity: o.Identity, Node: nodeName(i)}, ipcache.OwnerCiliumEndpoints)
	}
	for i := range apps {
		put(b, w.DB, w.identities, &identities.Identity{ID: uint32(1000 + i), Labels: labelsOf(1000+i, 99)})
	}
	for i := range pods {
		o, e := far(i)
		put(b, w.DB, remote, o)
		put(b, w.DB, cache, e)
	}
	rule := &k8s.NetworkPolicy{Namespace: "ns-0", Name: "to-web", IsEgress: true, Egress: []k8s.PolicyRule{{
		Peers: []k8s.Peer{{Namespaces: &k8s.Selector{}}}, Ports: []k8s.PolicyPort{{Protocol: "TCP", Port: "web"}}}}}
	rules := w.KubernetesPolicies.(statedb.RWTable[*k8s.NetworkPolicy])
	b.Run("the first rule", func(b *testing.B) {
		for b.Loop() {
			put(b, w.DB, rules, rule)
			w.step(b)
			b.StopTimer()
			txn := w.DB.WriteTxn(rules)
			_, _, _ = rules.Delete(txn, rule)
			txn.Commit()
			w.step(b)
			b.StartTimer()
		}
	})
	put(b, w.DB, rules, rule)
	w.step(b)
	n := pods
	b.Run("one pod more", func(b *testing.B) {
		for b.Loop() {
			o, e := far(n)
			n++
			put(b, w.DB, remote, o)
			put(b, w.DB, cache, e)
			w.step(b)
		}
	})
	many := func(i, turn int) *nodes.Node {
		return &nodes.Node{Name: fmt.Sprint("many-", i), CIDRs: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{11, byte(i >> 8), byte(i), 0}), 24)},
			Addresses: []nodes.Address{{Type: nodes.InternalIP, Addr: netip.AddrFrom4([4]byte{172, byte(16 + turn%2), byte(i >> 8), byte(i)})}}}
	}
	rows := w.Nodes.(statedb.RWTable[*nodes.Node])
	for i := range 5000 {
		put(b, w.DB, rows, many(i, 0))
	}
	w.step(b)
	b.Run("another address of one of 5,000 nodes", func(b *testing.B) {
		for turn := 0; b.Loop(); turn++ {
			put(b, w.DB, rows, many(100, turn+1))
			w.step(b)
		}
	})
}

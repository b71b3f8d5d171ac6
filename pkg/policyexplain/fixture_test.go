package policyexplain

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/identity"
	"github.com/waggle-net/waggle/pkg/labels"
	"github.com/waggle-net/waggle/pkg/loadbalancer"
	"github.com/waggle-net/waggle/pkg/manifests"
	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/policy/policycompiler"
	"github.com/waggle-net/waggle/pkg/policy/policyenvironment"
	"github.com/waggle-net/waggle/pkg/tables/backends"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/endpointpolicies"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/flows"
	"github.com/waggle-net/waggle/pkg/tables/frontends"
	"github.com/waggle-net/waggle/pkg/tables/identities"
	"github.com/waggle-net/waggle/pkg/tables/ipcache"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/namedcidrs"
	"github.com/waggle-net/waggle/pkg/tables/nodeaddresses"
	"github.com/waggle-net/waggle/pkg/tables/policies"
	"github.com/waggle-net/waggle/pkg/tables/policyclasses"
	"github.com/waggle-net/waggle/pkg/tables/policyentries"
	"github.com/waggle-net/waggle/pkg/tables/sources"
)

// shop contains the policies of the fixture.
const shop = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web, namespace: shop}
spec:
  podSelector: {matchLabels: {app: web}}
  ingress:
  - from: [{podSelector: {matchLabels: {app: cart}}}]
    ports: [{port: 80}, {port: metrics}, {port: 8000, endPort: 8100, protocol: UDP}]
  - from: [{ipBlock: {cidr: 192.0.2.0/24, except: [192.0.2.128/25]}}]
---
apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: out, namespace: shop}
spec:
  endpointSelector: {matchLabels: {app: cart}}
  egress: [{toEndpoints: [{matchLabels: {app: web}}]}]
  egressDeny: [{toEndpoints: [{matchLabels: {app: web}}], toPorts: [{ports: [{port: "81", protocol: TCP}]}]}]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: try, namespace: shop, annotations: {policy.waggle.io/mode: audit}}
spec: {podSelector: {matchLabels: {app: free}}}
---
apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: no-api, namespace: shop}
spec:
  endpointSelector: {matchLabels: {app: web}}
  enableDefaultDeny: {egress: false}
  egressDeny: [{toEntities: [kube-apiserver]}]
`

// spaces is a policy that selects peers by namespace only.
const spaces = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: spaces, namespace: shop}
spec:
  podSelector: {matchLabels: {app: web}}
  ingress:
  - {from: [{namespaceSelector: {}}], ports: [{port: 80}]}
  - {from: [{podSelector: {}}], ports: [{port: 81}]}
`

// Endpoints of the fixture: 1 is shop/web, 2 shop/cart, 3 shop/free. shop/far is on another node.
const (
	webID  = 1
	cartID = 2
	freeID = 3
)

// fixture is a node with three endpoints and their policies, in tables and in maps.
type fixture struct {
	tables Tables
	kernel *fakeKernel
	flows  statedb.RWTable[*flows.Flow]

	policies  statedb.RWTable[*policies.Policy]
	published statedb.RWTable[*endpointpolicies.EndpointPolicy]
	remote    statedb.RWTable[*cilium.Endpoint]
}

func labelsOf(app string) map[string]string {
	return map[string]string{"k8s:app": app, "k8s:io.kubernetes.pod.namespace": "shop", "k8s:io.cilium.k8s.policy.cluster": "default"}
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	return fixtureOf(t, shop)
}

// fixtureOf returns a fixture with other policies.
func fixtureOf(t testing.TB, objects string) *fixture {
	t.Helper()
	db := statedb.New()
	f := &fixture{kernel: &fakeKernel{facts: map[uint16]bpf.EndpointFacts{}, entries: map[bpf.PolicyKey]bpf.PolicyEntry{},
		ranges: map[bpf.PolicyRangeKey]bpf.PolicyEntry{}, identities: map[netip.Addr]uint32{}, cidrs: map[netip.Prefix]uint32{},
		classes: map[uint32]bpf.IdentityClasses{}}}
	options := policy.Options{Mode: policy.Default, AllowLocalhost: true}
	resolver := policycompiler.New(options)
	environment := newEnvironment(t, db)
	parsed, _, err := manifests.Policies([]byte(objects), environment.Read(db.ReadTxn(), statedb.NewWatchSet()))
	if err != nil || len(parsed) != strings.Count(objects, "\nkind: ") {
		t.Fatalf("%d policies: %v", len(parsed), err)
	}
	f.flows = made(t, db, flows.NewTable)
	f.tables = Tables{DB: db, Options: options, Environment: environment}
	policyTable := made(t, db, policies.NewTable)
	for _, p := range parsed {
		resolver.UpsertPolicy(p)
		insert(t, db, policyTable, &policies.Policy{Policy: p})
	}
	ids := made(t, db, identities.NewTable)
	cache := made(t, db, ipcache.NewTable)
	known := func(id uint32, labels map[string]string, prefix string) {
		resolver.UpsertIdentity(id, labels)
		insert(t, db, ids, &identities.Identity{ID: id, Labels: labels})
		p := netip.MustParsePrefix(prefix)
		insert(t, db, cache, ipcache.NewEntry(ipcache.Claim{Prefix: p, Identity: id}, prefix))
		if p.IsSingleIP() {
			f.kernel.identities[p.Addr()] = id
		}
	}
	known(identity.WorldIPv4, identity.Labels(identity.WorldIPv4), "0.0.0.0/0")
	known(identity.Host, identity.Labels(identity.Host), "10.0.0.100/32")
	known(identity.KubeAPIServer, identity.Labels(identity.KubeAPIServer), "192.168.9.2/32")
	known(0, nil, "10.0.7.7/32")
	known(301, labelsOf("web"), "10.0.0.1/32")
	known(302, labelsOf("cart"), "10.0.0.2/32")
	known(303, labelsOf("free"), "10.0.0.3/32")
	known(304, labelsOf("far"), "10.0.9.9/32")
	eps := made(t, db, endpoints.NewTable)
	pods := made(t, db, k8s.NewPodTable)
	for id, app := range map[uint16]string{webID: "web", cartID: "cart", freeID: "free"} {
		addr := netip.AddrFrom4([4]byte{10, 0, 0, byte(id)})
		insert(t, db, eps, &endpoints.Endpoint{ID: id, ContainerID: app, IfName: "eth0", IPv4: addr, K8sNamespace: "shop", K8sPodName: app,
			Labels: labelsOf(app), Ports: []k8s.ContainerPort{{Name: "metrics", Protocol: "TCP", Number: 9100}}})
		ports := []policy.NamedPort{{Name: "metrics", Protocol: policy.ProtocolTCP, Number: 9100}}
		insert(t, db, pods, &k8s.Pod{Namespace: "shop", Name: app}) // without ports: the endpoint has them, and exists after the Pod is deleted
		resolver.UpsertSubject(policycompiler.Subject{ID: id, Labels: labelsOf(app), Ports: ports})
		resolver.UpsertPod("shop/"+app, policycompiler.Pod{Identity: 300 + uint32(id), Addresses: []netip.Addr{addr}, Ports: ports})
	}
	resolver.SetNested(true)
	resolver.SetClasses(true)
	resolver.StartClasses(nil, 0)
	for _, id := range resolver.UnappliedClasses() {
		of := resolver.ClassesOf(id)
		f.kernel.classes[id] = bpf.IdentityClasses{Cluster: of.Cluster, Namespace: of.Namespace}
	}
	classes := made(t, db, policyclasses.NewTable)
	f.tables.Classes = classes
	for number, shared := range resolver.ChangedClasses() {
		insert(t, db, classes, &policyclasses.Class{Number: number, Labels: shared, Namespace: shared["k8s:"+labels.KeyNamespace]})
	}
	named := made(t, db, namedcidrs.NewTable)
	numbers := map[netip.Prefix]uint32{}
	for i, prefix := range resolver.NamedCIDRs() {
		numbers[prefix] = 1<<24 + 1 + uint32(i)
		insert(t, db, named, &namedcidrs.CIDR{Prefix: prefix, Identity: numbers[prefix]})
	}
	resolver.SetCIDRs(numbers)
	f.kernel.cidrs = numbers
	entries := made(t, db, policyentries.NewTable)
	published := made(t, db, endpointpolicies.NewTable)
	next := uint32(2)
	install := func(c *policycompiler.Compiled) endpointpolicies.Policy {
		if c == nil {
			return endpointpolicies.Policy{}
		}
		if c.AllowsAll() {
			return endpointpolicies.Policy{ID: bpf.PolicyAllowAll}
		}
		id := next
		next++
		insert(t, db, entries, &policyentries.Policy{ID: id, Shape: c.Shape(), Compiled: c})
		f.kernel.install(id, c)
		return endpointpolicies.Policy{ID: id, Shape: c.Shape()}
	}
	for id, app := range map[uint16]string{webID: "web", cartID: "cart", freeID: "free"} {
		ingress, egress := resolver.Compile(id)
		row := &endpointpolicies.EndpointPolicy{EndpointID: id, Attachment: app + ":eth0", Identity: 300 + uint32(id), Revision: 1,
			Ingress: endpointpolicies.Decision{Enforced: install(ingress.Enforced), Audited: install(ingress.Audited), Isolated: ingress.Enforced.Isolated()},
			Egress:  endpointpolicies.Decision{Enforced: install(egress.Enforced), Audited: install(egress.Audited), Isolated: egress.Enforced.Isolated()}}
		insert(t, db, published, row)
		f.kernel.facts[id] = bpf.EndpointFacts{Id: id, PolicyIngress: row.Ingress.Enforced.ID, ShapeIngress: row.Ingress.Enforced.Shape,
			PolicyEgress: row.Egress.Enforced.ID, ShapeEgress: row.Egress.Enforced.Shape}
	}
	remote := made(t, db, cilium.NewEndpointTable)
	insert(t, db, remote, cilium.NewEndpoint(cilium.EndpointFields{Namespace: "shop", Name: "far", Identity: 304, Addrs: []netip.Addr{netip.MustParseAddr("10.0.9.9")}}))
	f.policies, f.published, f.remote = policyTable, published, remote
	f.serve(t, db)
	f.tables.Policies, f.tables.Entries, f.tables.EndpointPolicies, f.tables.NamedCIDRs = policyTable, entries, published, named
	f.tables.Endpoints, f.tables.Identities, f.tables.IPCache, f.tables.Pods, f.tables.CiliumEndpoints = eps, ids, cache, pods, remote
	return f
}

// serve adds services with the backend shop/web, with shop/web and shop/far, without backends, for clients in 192.0.2.0/24, and on ports of the node.
func (f *fixture) serve(t testing.TB, db *statedb.DB) {
	t.Helper()
	at := func(text string) loadbalancer.Address {
		a, err := loadbalancer.ParseAddress(text)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	fronts, backs := made(t, db, frontends.NewTable), made(t, db, backends.NewTable)
	for id, text := range map[uint32]string{1: "10.0.0.1:80/TCP", 2: "10.0.9.9:80/TCP", 3: "[fd00::9]:80/TCP"} {
		insert(t, db, backs, &backends.Backend{Address: at(text), ID: id, State: backends.Active})
	}
	many := []uint32{}
	for id := uint32(10); id < 30; id++ {
		insert(t, db, backs, &backends.Backend{Address: at(fmt.Sprintf("203.0.113.%d:53/UDP", id)), ID: id, State: backends.Active})
		many = append(many, id)
	}
	for i, row := range []frontends.Frontend{
		{Address: at("10.96.0.1:8080/TCP"), Kind: frontends.ClusterIP, Service: "shop/web", Backends: []uint32{1}},
		{Address: at("10.96.0.2:8080/TCP"), Kind: frontends.ClusterIP, Service: "shop/both", Backends: []uint32{1, 2}},
		{Address: at("10.96.0.3:8080/TCP"), Kind: frontends.ClusterIP, Service: "shop/none", Status: reconciler.StatusError(errors.New("full"))},
		{Address: at("10.96.0.4:8080/TCP"), Kind: frontends.ClusterIP, Service: "shop/lost", Backends: []uint32{99}},
		{Address: at("10.96.0.5:53/UDP"), Kind: frontends.ClusterIP, Service: "shop/many", Backends: many},
		{Address: at("198.51.100.80:443/TCP"), Kind: frontends.LoadBalancer, Service: "shop/lb", Backends: []uint32{1}, Internal: []uint32{1, 2},
			TwoScopes: true, LocalOnly: true, Outside: true, Ranges: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}},
		{Address: at("198.51.100.80:444/TCP"), Kind: frontends.LoadBalancer, Service: "shop/lb", Backends: []uint32{1},
			Outside: true, Ranges: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}, Deny: true},
		{Address: at("10.0.0.100:30080/TCP"), Kind: frontends.NodePort, Service: "shop/port", Internal: []uint32{1}, TwoScopes: true, LocalOnly: true,
			Outside: true},
		{Address: at("127.0.0.1:30080/TCP"), Kind: frontends.NodePort, Service: "shop/port", Backends: []uint32{1}, Loopback: true},
		{Address: at("[fd96::1]:8080/TCP"), Kind: frontends.ClusterIP, Service: "shop/six", Backends: []uint32{3}},
		{Address: at("10.96.0.6:8080/TCP"), Kind: frontends.ClusterIP, Service: "shop/near", Backends: []uint32{1}, LocalOnly: true},
		{Address: at("10.96.0.7:8080/TCP"), Kind: frontends.ClusterIP, Service: "shop/waning", Backends: []uint32{1, 98, 99}},
	} {
		row.ID = uint32(1 + i)
		if row.Status.Kind != reconciler.StatusKindError {
			row.Status = reconciler.StatusDone()
		}
		insert(t, db, fronts, &row)
	}
	f.tables.Frontends, f.tables.Backends = fronts, backs
}

// newEnvironment returns inputs with API servers on this node, on another node and outside the cluster.
func newEnvironment(t testing.TB, db *statedb.DB) policyenvironment.Inputs {
	t.Helper()
	filter, err := labels.NewFilter(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	in := policyenvironment.Inputs{Filter: filter, Agent: agentconfig.Agent{ClusterName: "default", EnableIPv4: true, EnableIPv6: true}}
	addr := netip.MustParseAddr
	servers, addresses := made(t, db, k8s.NewEndpointSliceTable), made(t, db, nodeaddresses.NewTable)
	insert(t, db, servers, &k8s.EndpointSlice{Namespace: "default", Name: "kubernetes", Endpoints: []k8s.SliceEndpoint{
		{Addrs: []netip.Addr{addr("198.51.100.7"), addr("10.0.0.100")}}, {Addrs: []netip.Addr{addr("192.168.9.2"), addr("127.0.0.1")}}}})
	insert(t, db, addresses, nodeaddresses.Address{Addr: addr("10.0.0.100"), Device: "eth0"})
	in.Slices, in.NodeAddresses = servers, addresses
	in.CIDRGroups, in.Services = made(t, db, cilium.NewCIDRGroupTable), made(t, db, k8s.NewServiceTable)
	read := made(t, db, sources.NewTable)
	for _, table := range []string{in.CIDRGroups.Name(), in.Services.Name(), in.Slices.Name()} {
		insert(t, db, read, sources.Source{Table: table, State: sources.Synced})
	}
	in.Sources = read
	return in
}

func made[T any](t testing.TB, db *statedb.DB, make func(*statedb.DB) (statedb.RWTable[T], error)) statedb.RWTable[T] {
	t.Helper()
	table, err := make(db)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

func insert[T any](t testing.TB, db *statedb.DB, table statedb.RWTable[T], row T) {
	t.Helper()
	txn := db.WriteTxn(table)
	defer txn.Commit()
	if _, _, err := table.Insert(txn, row); err != nil {
		t.Fatal(err)
	}
}

// fakeKernel implements [Kernel] with maps of Go.
type fakeKernel struct {
	facts      map[uint16]bpf.EndpointFacts
	entries    map[bpf.PolicyKey]bpf.PolicyEntry
	ranges     map[bpf.PolicyRangeKey]bpf.PolicyEntry
	identities map[netip.Addr]uint32 // an absent address has the identity of the world
	cidrs      map[netip.Prefix]uint32
	classes    map[uint32]bpf.IdentityClasses
}

// install writes entries as the policy cell does.
func (k *fakeKernel) install(id uint32, c *policycompiler.Compiled) {
	for e := range c.Entries() {
		value := bpf.PolicyEntry{Rule: e.Rule}
		if e.Deny {
			value.Deny = 1
		}
		if e.IsRange() {
			k.ranges[bpf.NewPolicyRangeKey(id, bpf.PolicyKind(e.Kind), e.Identity, e.Protocol, e.Port, int(e.PortBits))] = value
			continue
		}
		level := bpf.PolicyAll
		if e.PortBits == 16 {
			level = bpf.PolicyPort
		} else if e.Protocol != 0 {
			level = bpf.PolicyProtocol
		}
		k.entries[bpf.NewPolicyKey(id, bpf.PolicyKind(e.Kind), e.Identity, level, e.Protocol, e.Port)] = value
	}
}

func (k *fakeKernel) Facts(id uint16) (bpf.EndpointFacts, error) { return k.facts[id], nil }

func (k *fakeKernel) Identity(addr netip.Addr) (uint32, error) {
	if id, found := k.identities[addr]; found {
		return id, nil
	}
	return identity.WorldIPv4, nil
}

func (k *fakeKernel) CIDRs(addr netip.Addr) (ids []uint32, _ error) {
	for bits := addr.BitLen(); bits >= 0; bits-- {
		if number := k.cidrs[netip.PrefixFrom(addr, bits).Masked()]; number != 0 {
			ids = append(ids, number)
		}
	}
	return ids, nil
}

func (k *fakeKernel) Classes(identity uint32) (bpf.IdentityClasses, error) {
	return k.classes[identity], nil
}

func (k *fakeKernel) Entry(key bpf.PolicyKey) (bpf.PolicyEntry, bool, error) {
	e, found := k.entries[key]
	return e, found, nil
}

func (k *fakeKernel) Range(key bpf.PolicyRangeKey) (bpf.PolicyEntry, bool, error) {
	port, _ := key.Ports()
	for bits := 16; bits >= 0; bits-- {
		if e, found := k.ranges[bpf.NewPolicyRangeKey(key.Policy, bpf.PolicyKind(key.Kind), key.Identity, key.Protocol, port, bits)]; found {
			return e, true, nil
		}
	}
	return bpf.PolicyEntry{}, false, nil
}

func (k *fakeKernel) Between(from, to netip.Addr, protocol uint8, port uint16) ([]string, error) {
	return []string{fmt.Sprintf("%s -> %s %d/%d", from, to, port, protocol)}, nil
}

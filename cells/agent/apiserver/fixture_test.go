package apiserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/datapath/pinnedmaps"
	"github.com/waggle-net/waggle/pkg/endpoint"
	"github.com/waggle-net/waggle/pkg/identity"
	"github.com/waggle-net/waggle/pkg/ipam"
	"github.com/waggle-net/waggle/pkg/labels"
	"github.com/waggle-net/waggle/pkg/loadbalancer"
	"github.com/waggle-net/waggle/pkg/mac"
	"github.com/waggle-net/waggle/pkg/podlink"
	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/policy/policycompiler"
	"github.com/waggle-net/waggle/pkg/policy/policyenvironment"
	"github.com/waggle-net/waggle/pkg/policyexplain"
	"github.com/waggle-net/waggle/pkg/tables/apiservers"
	"github.com/waggle-net/waggle/pkg/tables/attachments"
	"github.com/waggle-net/waggle/pkg/tables/backends"
	"github.com/waggle-net/waggle/pkg/tables/bpfendpoints"
	"github.com/waggle-net/waggle/pkg/tables/bpfmaps"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/cniconfig"
	"github.com/waggle-net/waggle/pkg/tables/desireddevices"
	"github.com/waggle-net/waggle/pkg/tables/desiredroutes"
	"github.com/waggle-net/waggle/pkg/tables/devices"
	"github.com/waggle-net/waggle/pkg/tables/endpointpolicies"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/endpointstates"
	"github.com/waggle-net/waggle/pkg/tables/flows"
	"github.com/waggle-net/waggle/pkg/tables/frontends"
	"github.com/waggle-net/waggle/pkg/tables/health"
	"github.com/waggle-net/waggle/pkg/tables/identities"
	"github.com/waggle-net/waggle/pkg/tables/ipamaddresses"
	"github.com/waggle-net/waggle/pkg/tables/ipcache"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
	"github.com/waggle-net/waggle/pkg/tables/masquerade"
	"github.com/waggle-net/waggle/pkg/tables/mtus"
	"github.com/waggle-net/waggle/pkg/tables/namedcidrs"
	"github.com/waggle-net/waggle/pkg/tables/nodeaddresses"
	"github.com/waggle-net/waggle/pkg/tables/nodehealth"
	"github.com/waggle-net/waggle/pkg/tables/nodeids"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/tables/policies"
	"github.com/waggle-net/waggle/pkg/tables/policyclasses"
	"github.com/waggle-net/waggle/pkg/tables/policyentries"
	"github.com/waggle-net/waggle/pkg/tables/services"
	"github.com/waggle-net/waggle/pkg/tables/sources"
	"github.com/waggle-net/waggle/pkg/tables/sysctls"
	"github.com/waggle-net/waggle/pkg/tables/unmanagedpods"
)

// fixture is an API with its own tables, and with a manager and an allocator that record their calls.
type fixture struct {
	t         *testing.T
	api       api
	handler   http.Handler
	manager   *fakeManager
	allocator *fakeAllocator

	nodes          statedb.RWTable[*nodes.Node]
	fillCNIConfig  func(cniconfig.Config) // inserts the single row of cni-config
	fillSources    func(...sources.Source)
	fillAPIServers func(...apiservers.Server) // inserts rows of api-servers
}

// at is the time in all rows.
var at = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func newFixture(t *testing.T) *fixture {
	t.Helper()
	db := statedb.New()
	f := &fixture{t: t, allocator: &fakeAllocator{}}
	eps := table(t, db, endpoints.NewTable)
	f.manager = &fakeManager{db: db, table: eps, restored: make(chan struct{})}
	close(f.manager.restored)
	f.api = api{
		Log: slog.New(slog.DiscardHandler), DB: db, Manager: f.manager, Allocator: f.allocator, MapReader: fakeMaps{},
		Settings: agentconfig.Agent{EnableIPv4: true, EnableIPv6: true, NodeName: "node-1", ClusterName: "default"},
		Flags:    map[string]any{"ipam": "kubernetes"},
	}
	f.api.Ready.Endpoints = eps
	f.api.Ready.LocalNode = filled(t, db, localnode.NewTable, &localnode.LocalNode{
		Name: "node-1", Ready: true, Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")},
		IPv4: localnode.Family{AllocRange: netip.MustParsePrefix("10.0.1.0/24"), Router: netip.MustParseAddr("10.0.1.1"),
			NodeIP: netip.MustParseAddr("192.0.2.1")},
		IPv6: localnode.Family{AllocRange: netip.MustParsePrefix("fd00:1::/64"), Router: netip.MustParseAddr("fd00:1::1")},
	})
	f.api.Ready.MTUs = filled(t, db, mtus.NewTable, mtus.MTU{Prefix: mtus.Default, DeviceMTU: 1500, RouteMTU: 1450})
	from := table(t, db, sources.NewTable)
	f.api.Ready.Sources = from
	f.fillSources = func(rows ...sources.Source) {
		txn := db.WriteTxn(from)
		for _, row := range rows {
			_, _, _ = from.Insert(txn, row)
		}
		txn.Commit()
	}
	f.fillSources(sources.Source{Table: "k8s-nodes", Producer: "manifests", State: sources.Synced})
	f.api.Ready.Attachments = filled(t, db, attachments.NewTable,
		&attachments.Attachment{Kind: attachments.Block, Device: "pod-links", Hook: "ingress", Status: reconciler.StatusDone()},
		&attachments.Attachment{Kind: attachments.TCX, Device: podlink.HostDevice, Hook: "egress", Status: reconciler.StatusDone()})
	f.api.Ready.Devices = filled(t, db, desireddevices.NewTable,
		&desireddevices.Device{Name: podlink.HostDevice, Status: reconciler.StatusDone()})
	f.api.Ready.Routes = filled(t, db, desiredroutes.NewTable,
		&desiredroutes.Route{Owner: desiredroutes.LocalNode, Table: desiredroutes.MainTable, Dst: netip.MustParsePrefix("10.0.1.0/24"), Status: reconciler.StatusDone()},
		&desiredroutes.Route{Owner: desiredroutes.LocalNode, Table: desiredroutes.MainTable, Dst: netip.MustParsePrefix("fd00:1::/64"), Status: reconciler.StatusDone()})
	f.api.Links = table(t, db, devices.NewTable)
	cart := loadbalancer.Address{Addr: netip.MustParseAddr("10.0.1.7"), Port: 8080, Protocol: loadbalancer.TCP}
	other := loadbalancer.Address{Addr: netip.MustParseAddr("10.0.2.7"), Port: 8080, Protocol: loadbalancer.TCP}
	web := loadbalancer.Address{Addr: netip.MustParseAddr("10.96.0.1"), Port: 80, Protocol: loadbalancer.TCP}
	nodePort := loadbalancer.Address{Addr: netip.MustParseAddr("192.0.2.1"), Port: 30080, Protocol: loadbalancer.TCP}
	f.api.Services = filled(t, db, services.NewTable, &services.Service{Name: "shop/web", Type: "NodePort", ExternalLocal: true, HealthCheckNodePort: 32000})
	f.api.Frontends = filled(t, db, frontends.NewTable,
		&frontends.Frontend{Address: web, ID: 1, Kind: frontends.ClusterIP, Service: "shop/web", Backends: []uint32{4, 5}, Status: reconciler.StatusDone()},
		&frontends.Frontend{Address: nodePort, ID: 2, Kind: frontends.NodePort, Service: "shop/web", Backends: []uint32{4}, Internal: []uint32{4, 5},
			TwoScopes: true, Status: reconciler.StatusPending()})
	f.api.Backends = filled(t, db, backends.NewTable,
		&backends.Backend{Address: cart, ID: 4, State: backends.Active, Local: true, Node: "node-1", Zone: "a", Services: []string{"shop/web"}},
		&backends.Backend{Address: other, ID: 5, State: backends.Terminating, Node: "node-2", Services: []string{"shop/web"}})
	f.api.Exclusions = table(t, db, masquerade.NewExclusionTable)
	f.api.Ready.Sysctls = table(t, db, sysctls.NewTable)
	f.api.Ready.Hosts = table(t, db, bpfendpoints.NewAddressTable)
	f.api.Ready.Health = filled(t, db, health.NewTable,
		health.Status{Module: "agent.ipam", Component: "job-x", Level: health.OK, Message: "fine", UpdatedAt: at})
	f.api.Addresses = filled(t, db, ipamaddresses.NewTable,
		ipamaddresses.Address{Addr: netip.MustParseAddr("10.0.1.1"), Pool: "default", State: ipamaddresses.Reserved, Owner: "router"},
		ipamaddresses.Address{Addr: netip.MustParseAddr("10.9.9.9"), Pool: "default", State: ipamaddresses.Claimed, Owner: "a/of-a-previous-range"},
		ipamaddresses.Address{Addr: netip.MustParseAddr("10.0.1.9"), Pool: "default", State: ipamaddresses.Quarantined, Owner: "a/gone"})
	cniConfig := table(t, db, cniconfig.NewTable)
	f.api.CNIConfig = cniConfig
	servers := table(t, db, apiservers.NewTable)
	f.api.APIServers = servers
	f.fillAPIServers = func(rows ...apiservers.Server) {
		txn := db.WriteTxn(servers)
		for _, row := range rows {
			_, _, _ = servers.Insert(txn, row)
		}
		txn.Commit()
	}
	f.fillCNIConfig = func(row cniconfig.Config) {
		txn := db.WriteTxn(cniConfig)
		_, _, _ = cniConfig.Insert(txn, row)
		txn.Commit()
	}
	f.api.NodeClients = newNodeClients()
	f.nodes = table(t, db, nodes.NewTable)
	f.api.Nodes = f.nodes
	f.putNode(&nodes.Node{Name: "node-1", Source: nodes.Local})
	f.putNode(&nodes.Node{Name: "node-2", Source: nodes.CiliumNode, CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.2.0/24")}, Addresses: []nodes.Address{
		{Type: nodes.InternalIP, Addr: netip.MustParseAddr("192.0.2.2")}, {Type: nodes.CiliumInternalIP, Addr: netip.MustParseAddr("10.0.2.1")},
		{Type: nodes.HealthIP, Addr: netip.MustParseAddr("10.0.2.9")}}})
	f.api.NodeIDs = filled(t, db, nodeids.NewTable, &nodeids.NodeID{ID: 1, Name: "node-2"}, &nodeids.NodeID{ID: 2, Name: "node-1", Released: at})
	f.api.NodeHealth = filled(t, db, nodehealth.NewTable,
		&nodehealth.Path{Node: "node-2", Kind: nodehealth.Host4, ICMP: nodehealth.Check{State: nodehealth.Unreachable}})
	f.api.NodeAddresses = table(t, db, nodeaddresses.NewTable)
	f.api.Maps = filled(t, db, bpfmaps.NewTable, &bpfmaps.Map{Name: "bpf_links", MaxEntries: 4096, Pin: "/bpf/bpf_links_v1"})
	f.api.States = filled(t, db, endpointstates.NewTable, &endpointstates.EndpointState{
		ID: 7, State: endpointstates.Ready, Identity: identity.Init, Revision: 3,
		Log: []endpointstates.LogEntry{
			{Time: at, State: endpointstates.Regenerating, Failed: true, Message: "attach: busy"},
			{Time: at.Add(time.Second), State: endpointstates.Ready, Message: "in the kernel"},
		},
	})
	f.api.Identities = filled(t, db, identities.NewTable,
		&identities.Identity{ID: identity.Init, Labels: map[string]string{"reserved:init": ""}, Source: identities.Reserved},
		&identities.Identity{ID: 300, Labels: map[string]string{"k8s:app": "web"}, Source: identities.CRD})
	f.api.EndpointIdentities = filled(t, db, identities.NewEndpointTable, &identities.EndpointIdentity{EndpointID: 7,
		Attachment: pod().AttachmentID(), Identity: identity.Init, Source: identities.Reserved, Labels: map[string]string{"reserved:init": ""}})
	f.api.Unmanaged = filled(t, db, unmanagedpods.NewTable, &unmanagedpods.Pod{Namespace: "shop", Name: "old"})
	f.api.Policy = policyTables(t, db, &f.api)
	f.api.Flows = filled(t, db, flows.NewTable, &flows.Flow{Endpoint: 7, Direction: policy.Ingress, Protocol: policy.ProtocolTCP, Port: 80,
		Src: netip.MustParseAddr("10.0.1.8"), Dst: pod().IPv4, Peer: 300, Verdict: flows.Allowed, Count: 3, First: at, Last: at})
	f.manager.insert(pod())
	f.handler = newHandler(f.api)
	return f
}

// putNode inserts a row of nodes.
func (f *fixture) putNode(row *nodes.Node) {
	txn := f.api.DB.WriteTxn(f.nodes)
	defer txn.Commit()
	if _, _, err := f.nodes.Insert(txn, row); err != nil {
		f.t.Error(err)
	}
}

// policyTables returns tables with a policy of shop/cart: it is isolated in ingress, and identity 300 may connect to TCP port 80.
func policyTables(t *testing.T, db *statedb.DB, a *api) policyexplain.Tables {
	t.Helper()
	web := policy.Selector{Requirements: []policy.Requirement{{Source: "k8s", Key: "app", Operator: policy.In, Values: []string{"web"}}}}
	cart := policy.Selector{Requirements: []policy.Requirement{{Source: "k8s", Key: "app", Operator: policy.In, Values: []string{"cart"}}}}
	object := &policy.Policy{Ref: policy.Ref{Kind: policy.Kubernetes, Namespace: "shop", Name: "cart"}, Parts: []policy.Part{{
		Path: "spec", Subject: cart, IsolatesIngress: true, Rules: []policy.Rule{{Path: "spec.ingress[0]", Direction: policy.Ingress,
			Peers: policy.Peers{List: []policy.Peer{{Labels: &web}}},
			Ports: policy.Ports{List: []policy.Port{{Protocol: policy.ProtocolTCP, Low: 80, High: 80}}}}}}}}
	resolver := policycompiler.New(policy.Options{})
	resolver.UpsertPolicy(object)
	resolver.UpsertIdentity(300, map[string]string{"k8s:app": "web"})
	resolver.UpsertSubject(policycompiler.Subject{ID: 7, Labels: pod().Labels})
	compiled, _ := resolver.Compile(7)
	filter, err := labels.NewFilter(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return policyexplain.Tables{DB: db, Options: policy.Options{Mode: policy.Default}, Endpoints: a.Ready.Endpoints, Identities: a.Identities,
		Policies: filled(t, db, policies.NewTable, &policies.Policy{Policy: object, Subjects: 1}),
		Entries:  filled(t, db, policyentries.NewTable, &policyentries.Policy{ID: 2, Compiled: compiled.Enforced}),
		EndpointPolicies: filled(t, db, endpointpolicies.NewTable, &endpointpolicies.EndpointPolicy{EndpointID: 7,
			Attachment: pod().AttachmentID(), Identity: identity.Init, Revision: 3,
			Ingress: endpointpolicies.Decision{Enforced: endpointpolicies.Policy{ID: 2, Shape: compiled.Enforced.Shape()}, Isolated: true},
			Egress:  endpointpolicies.Decision{Enforced: endpointpolicies.Policy{ID: 1}}}),
		Classes: table(t, db, policyclasses.NewTable),
		NamedCIDRs: filled(t, db, namedcidrs.NewTable,
			&namedcidrs.CIDR{Prefix: netip.MustParsePrefix("203.0.113.0/24"), Identity: 0x01000001}),
		IPCache: filled(t, db, ipcache.NewTable,
			ipcache.NewEntry(ipcache.Claim{Prefix: netip.MustParsePrefix("10.0.1.8/32"), Identity: 300, Source: ipcache.SourceRemote,
				Node: "node-2"}, "test")),
		Pods: table(t, db, k8s.NewPodTable), CiliumEndpoints: filled(t, db, cilium.NewEndpointTable,
			cilium.NewEndpoint(cilium.EndpointFields{Namespace: "shop", Name: "web", Addrs: []netip.Addr{netip.MustParseAddr("10.0.1.8")}})),
		Frontends: a.Frontends, Backends: a.Backends,
		Environment: policyenvironment.Inputs{Agent: a.Settings, Filter: filter, Slices: table(t, db, k8s.NewEndpointSliceTable),
			NodeAddresses: a.NodeAddresses, CIDRGroups: table(t, db, cilium.NewCIDRGroupTable),
			Services: table(t, db, k8s.NewServiceTable), Sources: a.Ready.Sources}}
}

func table[T any](t *testing.T, db *statedb.DB, make func(*statedb.DB) (statedb.RWTable[T], error)) statedb.RWTable[T] {
	t.Helper()
	tbl, err := make(db)
	if err != nil {
		t.Fatal(err)
	}
	return tbl
}

func filled[T any](t *testing.T, db *statedb.DB, make func(*statedb.DB) (statedb.RWTable[T], error), rows ...T) statedb.RWTable[T] {
	t.Helper()
	tbl := table(t, db, make)
	txn := db.WriteTxn(tbl)
	for _, row := range rows {
		if _, _, err := tbl.Insert(txn, row); err != nil {
			t.Fatal(err)
		}
	}
	txn.Commit()
	return tbl
}

// pod returns the existing endpoint.
func pod() *endpoints.Endpoint {
	return &endpoints.Endpoint{
		ID: 7, ContainerID: "c7", IfName: "eth0", HostIfName: "lxc0123456789ab", HostIfIndex: 12,
		HostMAC: mac.Addr{2, 0, 0, 0, 0, 1}, PodMAC: mac.Addr{2, 0, 0, 0, 0, 2},
		IPv4: netip.MustParseAddr("10.0.1.7"), IPv6: netip.MustParseAddr("fd00:1::7"), IPv4Pool: "default", IPv6Pool: "default",
		K8sNamespace: "shop", K8sPodName: "cart", Labels: map[string]string{"k8s:app": "cart", "unspec:tier": "db"},
	}
}

// request sends a request and returns status, headers and body.
func (f *fixture) request(method, path, body string, headers ...string) *http.Response {
	f.t.Helper()
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	f.handler.ServeHTTP(w, r)
	return w.Result()
}

// expect compares status and body. If the expected body ends in "...", only the prefix before it is compared.
func (f *fixture) expect(r *http.Response, code int, body string) {
	f.t.Helper()
	data, err := io.ReadAll(r.Body)
	if err != nil {
		f.t.Fatal(err)
	}
	got := strings.TrimSuffix(string(data), "\n")
	if start, cut := strings.CutSuffix(body, "..."); cut && len(got) > len(start) {
		got, body = got[:len(start)], start
	}
	if r.StatusCode != code || got != body {
		f.t.Errorf("got  %d %s\nwant %d %s", r.StatusCode, got, code, body)
	}
}

// fakeManager stores endpoints in a table and returns errors on request.
type fakeManager struct {
	db       *statedb.DB
	table    statedb.RWTable[*endpoints.Endpoint]
	restored chan struct{}

	mu      sync.Mutex
	created []endpoint.Request
	fail    error         // error of Create, Delete and SetLabels
	block   chan struct{} // if set, Create waits for it
}

func (m *fakeManager) insert(ep *endpoints.Endpoint) {
	txn := m.db.WriteTxn(m.table)
	_, _, _ = m.table.Insert(txn, ep)
	txn.Commit()
}

func (m *fakeManager) remove(ep *endpoints.Endpoint) {
	txn := m.db.WriteTxn(m.table)
	_, _, _ = m.table.Delete(txn, ep)
	txn.Commit()
}

func (m *fakeManager) Create(ctx context.Context, r endpoint.Request) (*endpoints.Endpoint, error) {
	if m.block != nil {
		select {
		case <-m.block:
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", endpoint.ErrNotReady, ctx.Err())
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.created = append(m.created, r)
	if m.fail != nil {
		return nil, m.fail
	}
	ep := pod()
	ep.ID, ep.ContainerID, ep.IPv4, ep.IPv6, ep.Labels = 8, r.ContainerID, r.IPv4, r.IPv6, nil
	return ep, nil
}

func (m *fakeManager) Lookup(id string) (*endpoints.Endpoint, error) {
	ref, err := endpoint.ParseRef(id)
	if err != nil {
		return nil, err
	}
	if ref.Kind == endpoint.RefAddress {
		return m.get(endpoints.ByAddress(ref.Addr))
	}
	return m.get(map[endpoint.RefKind]statedb.Query[*endpoints.Endpoint]{
		endpoint.RefID: endpoints.ByID(ref.ID), endpoint.RefAttachment: endpoints.ByAttachment(ref.Name),
		endpoint.RefContainer: endpoints.ByContainer(ref.Name), endpoint.RefPod: endpoints.ByPod(ref.Name),
	}[ref.Kind])
}

func (m *fakeManager) get(q statedb.Query[*endpoints.Endpoint]) (*endpoints.Endpoint, error) {
	if ep, _, found := m.table.Get(m.db.ReadTxn(), q); found {
		return ep, nil
	}
	return nil, endpoint.ErrNotFound
}

func (m *fakeManager) Delete(_ context.Context, id string) error {
	ep, err := m.Lookup(id)
	if err != nil {
		return err
	}
	if m.fail == nil || errors.Is(m.fail, errPartly) {
		m.remove(ep)
	}
	return m.fail
}

// errPartly is the error of a deletion that removed the endpoint.
var errPartly = errors.New("remove its file: read-only file system")

func (m *fakeManager) DeleteContainer(_ context.Context, id string) (n int, err error) {
	for ep := range m.table.List(m.db.ReadTxn(), endpoints.ByContainer(id)) {
		n++
		m.remove(ep)
	}
	return n, m.fail
}

func (m *fakeManager) SetLabels(string, []string) (*endpoints.Endpoint, error) { return pod(), m.fail }
func (m *fakeManager) Restored() <-chan struct{}                               { return m.restored }

// fakeAllocator allocates one address and returns errors on request.
type fakeAllocator struct {
	ipam.Allocator // methods that the API does not call

	asked []ipam.Request
	freed []netip.Addr
	fail  error
}

func (a *fakeAllocator) Next(_ context.Context, r ipam.Request) (result ipam.Result, err error) {
	a.asked = append(a.asked, r)
	if a.fail != nil {
		return result, a.fail
	}
	result.IPv4 = &ipam.Allocation{Addr: netip.MustParseAddr("10.0.1.8"), Range: netip.MustParsePrefix("10.0.1.0/24"),
		Gateway: netip.MustParseAddr("10.0.1.1"), Pool: "default", UUID: "u-4"}
	return result, nil
}

func (a *fakeAllocator) Specific(context.Context, netip.Addr, string, string) error { return a.fail }

func (a *fakeAllocator) Release(addr netip.Addr, _, _ string) (bool, error) {
	a.freed = append(a.freed, addr)
	return false, a.fail
}

type fakeMaps struct{}

func (fakeMaps) Get(string) (*ebpf.Map, error)      { return nil, pinnedmaps.ErrNotOpen }
func (fakeMaps) All() (map[string]*ebpf.Map, error) { return nil, pinnedmaps.ErrNotOpen }
func (fakeMaps) Put(string, any, any) error         { return nil }
func (fakeMaps) Delete(string, any) error           { return nil }
func (fakeMaps) Entries(string) ([]pinnedmaps.Entry, error) {
	return []pinnedmaps.Entry{{Key: "12", Value: "7"}}, nil
}

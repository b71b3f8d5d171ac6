package policymaps

import (
	"fmt"
	"maps"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/pinnedmaps"
	"github.com/waggle-net/waggle/pkg/identity"
	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/policy/policycompiler"
	"github.com/waggle-net/waggle/pkg/policy/policytest"
	"github.com/waggle-net/waggle/pkg/testnet"
)

// programTest is the datapath without an agent: maps in memory, and two sets of programs, with and without
// --policy-cidr-match-mode=nodes.
type programTest struct {
	t        *testing.T
	maps     mapsInMemory
	entries  entryMaps
	cidrs    cidrMap
	classes  classMap
	programs map[bool]map[string]*ebpf.Program // by whether CIDRs match nodes
	nextID   uint32                            // of policies
	revision uint32                            // of facts
	port     uint16                            // of the last sender
}

const (
	firstLink = 101
	uplink    = 100
	podsMost  = 8
)

func newProgramTest(t *testing.T) *programTest {
	t.Helper()
	ns := testnet.New(t)
	ns.Enter()
	for i := range uint32(podsMost + 1) {
		link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: fmt.Sprintf("link%d", i), Index: int(uplink + i)},
			PeerName: fmt.Sprintf("peer%d", i)}
		if err := netlink.LinkAdd(link); err != nil {
			t.Fatal(err)
		}
	}
	specs, err := bpf.MapSpecs()
	if err != nil {
		t.Fatal(err)
	}
	test := &programTest{t: t, maps: mapsInMemory{}, programs: map[bool]map[string]*ebpf.Program{}, nextID: 2}
	for name, spec := range specs {
		m, err := ebpf.NewMap(spec)
		if err != nil {
			t.Fatalf("create map %s: %v", name, err)
		}
		t.Cleanup(func() { _ = m.Close() })
		test.maps[name] = m
	}
	test.entries, test.cidrs, _, test.classes = newKernel(test.maps)
	for _, matchNodes := range []bool{false, true} {
		test.programs[matchNodes] = map[string]*ebpf.Program{}
		for _, name := range []string{bpf.PodEgress, bpf.PodIngress} {
			test.programs[matchNodes][name] = test.load(name, matchNodes)
		}
	}
	return test
}

func (test *programTest) load(name string, matchNodes bool) *ebpf.Program {
	test.t.Helper()
	spec, err := bpf.Load(name)
	if err != nil {
		test.t.Fatal(err)
	}
	nodes := uint32(0)
	if matchNodes {
		nodes = 1
	}
	for variable, value := range map[string]any{bpf.VariableWorldIPv4: identity.WorldIPv4, bpf.VariableWorldIPv6: identity.WorldIPv6,
		bpf.VariablePolicyCIDRNodes: nodes} {
		if v := spec.Variables[variable]; v == nil {
			test.t.Fatalf("%s has no constant %s", name, variable)
		} else if err := v.Set(value); err != nil {
			test.t.Fatal(err)
		}
	}
	shared := map[string]*ebpf.Map{}
	for name := range spec.Maps {
		if m := test.maps[name]; m != nil {
			shared[name] = m
		}
	}
	all, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: shared})
	if err != nil {
		test.t.Fatalf("load %s: %+v", name, err)
	}
	test.t.Cleanup(all.Close)
	return all.Programs[name]
}

func (test *programTest) put(name string, key, value any) {
	test.t.Helper()
	if err := test.maps.Put(name, key, value); err != nil {
		test.t.Fatalf("put into %s: %v", name, err)
	}
}

func (test *programTest) remove(name string, key any) {
	test.t.Helper()
	if err := test.maps.Delete(name, key); err != nil {
		test.t.Fatalf("delete from %s: %v", name, err)
	}
}

// inPrograms is a world whose policies are in the maps.
type inPrograms struct {
	*policytest.World
	test     *programTest
	policies []*policy.Policy
	resolver *policycompiler.Resolver
	written  map[*policycompiler.Compiled]uint32
	cidrs    map[netip.Prefix]uint32
	pairs    map[[2]netip.Addr]bool // tested without ports
	with     features
}

// features select how policies are compiled: with nested address ranges, and with classes.
type features struct{ nested, classes bool }

// enter compiles the policies of a world and writes them to the maps.
func (test *programTest) enter(world *policytest.World, with features) *inPrograms {
	test.t.Helper()
	w := &inPrograms{World: world, test: test, policies: world.Policies(), resolver: policycompiler.New(world.Options),
		written: map[*policycompiler.Compiled]uint32{}, cidrs: map[netip.Prefix]uint32{}, pairs: map[[2]netip.Addr]bool{}, with: with}
	test.forget()
	w.resolver.SetNested(with.nested)
	w.resolver.SetClasses(with.classes)
	for number, labels := range w.Identities() {
		w.resolver.UpsertIdentity(number, labels)
	}
	for i := range w.Pods {
		p := &w.Pods[i]
		w.resolver.UpsertPod(p.Object.Key(), policycompiler.Pod{Identity: p.Identity, Addresses: p.Addrs[:], Ports: p.Ports})
		w.resolver.UpsertSubject(policycompiler.Subject{ID: idOf(i), Labels: p.Labels, Ports: p.Ports})
	}
	for _, p := range w.policies {
		w.resolver.UpsertPolicy(p)
	}
	for i, prefix := range w.resolver.NamedCIDRs() {
		w.cidrs[prefix] = 0x01000001 + uint32(i)
		if err := test.cidrs.Put(prefix, w.cidrs[prefix]); err != nil {
			test.t.Fatal(err)
		}
	}
	w.resolver.SetCIDRs(maps.Clone(w.cidrs))
	w.resolver.StartClasses(nil, 0)
	for number := range w.Identities() {
		test.putClasses(number, w.resolver.ClassesOf(number))
	}
	for addr, number := range w.addresses() {
		test.put(bpf.MapIpcache, bpf.NewAddrKey(addr), bpf.IpcacheEntry{Identity: number})
		if number == identity.Host {
			test.put(bpf.MapEndpoints, bpf.NewAddrKey(addr), bpf.EndpointRef{Flags: bpf.FlagHost})
		}
	}
	for i := range w.Pods {
		w.writePod(i)
	}
	return w
}

// putClasses writes the classes of an identity of the cluster.
func (test *programTest) putClasses(number uint32, classes policycompiler.Classes) {
	test.t.Helper()
	if number > identity.ClusterMax {
		return
	}
	if err := test.classes.Put(number, classes); err != nil {
		test.t.Fatal(err)
	}
}

func idOf(pod int) uint16 { return uint16(pod + 1) }

// addresses returns the addresses of all peers except the world, which has no entries in ipcache.
func (w *inPrograms) addresses() map[netip.Addr]uint32 {
	all := map[netip.Addr]uint32{}
	for _, p := range w.Peers() {
		if p.Identity != identity.WorldIPv4 && p.Identity != identity.WorldIPv6 {
			all[p.Addr] = p.Identity
		}
	}
	return all
}

func (w *inPrograms) writePod(i int) {
	w.test.t.Helper()
	ingress, egress := w.resolver.Compile(idOf(i))
	w.test.revision++
	podMAC, hostMAC := macs(i)
	facts := bpf.EndpointFacts{Ifindex: firstLink + uint32(i), Identity: w.Pods[i].Identity, Revision: w.test.revision, Id: idOf(i),
		Flags: bpf.FlagIPv4 | bpf.FlagIPv6, PodMac: podMAC, HostMac: hostMAC,
		Ipv4: bpf.IPv4Word(w.Pods[i].Addrs[0]), Ipv6: bpf.IPv6Bytes(w.Pods[i].Addrs[1])}
	facts.PolicyIngress, facts.ShapeIngress = w.write(ingress.Enforced)
	facts.PolicyEgress, facts.ShapeEgress = w.write(egress.Enforced)
	w.test.put(bpf.MapEndpointFacts, uint32(idOf(i)), facts)
	w.test.put(bpf.MapLinks, facts.Ifindex, uint32(idOf(i)))
}

// write writes a policy to the maps, once.
func (w *inPrograms) write(c *policycompiler.Compiled) (id, shape uint32) {
	w.test.t.Helper()
	if c.AllowsAll() {
		return bpf.PolicyAllowAll, 0
	}
	if id, found := w.written[c]; found {
		return id, c.Shape()
	}
	w.test.nextID++
	w.written[c] = w.test.nextID
	for e := range c.Entries() {
		if err := w.test.entries.Put(w.test.nextID, e); err != nil {
			w.test.t.Fatal(err)
		}
	}
	return w.test.nextID, c.Shape()
}

// leave removes the entries that would affect the next world.
func (w *inPrograms) leave() {
	w.test.t.Helper()
	for c, id := range w.written {
		for e := range c.Entries() {
			if err := w.test.entries.Delete(id, e.Key); err != nil {
				w.test.t.Fatal(err)
			}
		}
	}
	for prefix := range w.cidrs {
		if err := w.test.cidrs.Delete(prefix); err != nil {
			w.test.t.Fatal(err)
		}
	}
	for number := range w.Identities() {
		w.test.putClasses(number, policycompiler.Classes{})
	}
	for addr, number := range w.addresses() {
		w.test.remove(bpf.MapIpcache, bpf.NewAddrKey(addr))
		if number == identity.Host {
			w.test.remove(bpf.MapEndpoints, bpf.NewAddrKey(addr))
		}
	}
}

// forget empties the maps of connections.
func (test *programTest) forget() {
	test.t.Helper()
	for _, name := range []string{bpf.MapCtNew4, bpf.MapCtBurst4} {
		forget[bpf.CtKey4](test.t, test.maps[name])
	}
	for _, name := range []string{bpf.MapCtNew6, bpf.MapCtBurst6} {
		forget[bpf.CtKey6](test.t, test.maps[name])
	}
}

func forget[K any](t *testing.T, m *ebpf.Map) {
	t.Helper()
	var keys []K
	var key K
	var value bpf.CtEntry
	all := m.Iterate()
	for all.Next(&key, &value) {
		keys = append(keys, key)
	}
	for _, key := range keys {
		if err := m.Delete(key); err != nil {
			t.Fatal(err)
		}
	}
}

// mapsInMemory are maps that are not pinned.
type mapsInMemory map[string]*ebpf.Map

var _ pinnedmaps.Maps = mapsInMemory{}

func (m mapsInMemory) Get(name string) (*ebpf.Map, error) {
	if m[name] == nil {
		return nil, fmt.Errorf("map %s: %w", name, pinnedmaps.ErrUnknown)
	}
	return m[name], nil
}

func (m mapsInMemory) Put(name string, key, value any) error { return m[name].Put(key, value) }
func (m mapsInMemory) Delete(name string, key any) error     { return m[name].Delete(key) }
func (m mapsInMemory) All() (map[string]*ebpf.Map, error)    { return m, nil }
func (m mapsInMemory) Entries(name string) (_ []pinnedmaps.Entry, _ error) {
	return nil, pinnedmaps.ErrUnknown
}

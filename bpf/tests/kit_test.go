package tests

import (
	"cmp"
	"encoding/hex"
	"errors"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"
	gocmp "github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/events"
	"github.com/waggle-net/waggle/pkg/mac"
	"github.com/waggle-net/waggle/pkg/testnet"
)

// The node of the tests: pods a and b on links of fixed index, waggle_host, and one link without an endpoint.
const (
	ifPodA      = 101
	ifPodB      = 102
	ifUnmanaged = 103
	ifHost      = 104
	ifUplink    = 105
	identityPod = 0x123405 // has bits in both halves of the mark
)

// Actions of the kernel.
const (
	actUnspec   = 0xffffffff
	actOK       = 0
	actShot     = 2
	actRedirect = 7
)

type pod struct {
	id             uint16
	ifindex        uint32
	mac, host      mac.Addr
	ipv4, ipv6     netip.Addr
	policyIn, pOut uint32
}

var (
	gateway4 = netip.MustParseAddr("10.1.0.1")
	gateway6 = netip.MustParseAddr("fd00:1::1")

	podA = pod{11, ifPodA, mac.Addr{2, 0, 0, 0, 0, 0xa}, mac.Addr{2, 0, 0, 0, 1, 0xa},
		netip.MustParseAddr("10.1.0.11"), netip.MustParseAddr("fd00:1::b"), 1, 1}
	podB = pod{12, ifPodB, mac.Addr{2, 0, 0, 0, 0, 0xb}, mac.Addr{2, 0, 0, 0, 1, 0xb},
		netip.MustParseAddr("10.1.0.12"), netip.MustParseAddr("fd00:1::c"), 1, 1}
)

func (p pod) facts() bpf.EndpointFacts {
	return bpf.EndpointFacts{
		Ifindex: p.ifindex, Identity: identityPod + uint32(p.id), PolicyIngress: p.policyIn, PolicyEgress: p.pOut, Revision: 1,
		Id: p.id, Flags: bpf.FlagIPv4 | bpf.FlagIPv6, PodMac: p.mac, HostMac: p.host,
		Ipv4: bpf.IPv4Word(p.ipv4), GatewayIpv4: bpf.IPv4Word(gateway4), Ipv6: bpf.IPv6Bytes(p.ipv6), GatewayIpv6: bpf.IPv6Bytes(gateway6),
	}
}

// addr returns the pod's address of a family, 4 or 6.
func (p pod) addr(family int) netip.Addr {
	if family == 4 {
		return p.ipv4
	}
	return p.ipv6
}

// node is a datapath with its own maps. The test's goroutine is inside its network namespace.
type node struct {
	t        testing.TB
	maps     map[string]*ebpf.Map
	programs *programs
	events   *ringbuf.Reader
	ns       *testnet.Namespace
	// constants are load-time constants that differ from the defaults of the objects.
	constants map[string]uint32
	// entries are sizes of maps that differ from the defaults.
	entries map[string]uint32
	ran     time.Time // before the last packet
}

// programs are the programs of a node. A program is loaded at its first use: the verifier takes most of the time of a test that needs one of eight.
type programs struct {
	t  testing.TB // test of the node; its end closes the programs
	mu sync.Mutex
	by map[string]*ebpf.Program

	steps, work *ebpf.Map // see podMaps
}

func newPrograms(t testing.TB) *programs { return &programs{t: t, by: map[string]*ebpf.Program{}} }

// program returns a program of the node, loaded.
func (n *node) program(name string) *ebpf.Program {
	n.t.Helper()
	n.programs.mu.Lock()
	defer n.programs.mu.Unlock()
	p := n.programs.by[name]
	if p == nil {
		p = n.loadProgram(name)
		n.programs.by[name] = p
	}
	return p
}

// podMaps returns the maps pod_steps and flow_works of pod_egress.
func (n *node) podMaps() (steps, work *ebpf.Map) {
	n.t.Helper()
	n.program(bpf.PodEgress)
	return n.programs.steps, n.programs.work
}

// setProgram makes the node run another program under a name.
func (n *node) setProgram(name string, p *ebpf.Program) {
	n.programs.mu.Lock()
	defer n.programs.mu.Unlock()
	n.programs.by[name] = p
}

// as returns the node for a sub-test, whose goroutine enters the namespace too. Its bucket of events is full again.
func (n *node) as(t testing.TB) *node {
	t.Helper()
	n.ns.Enter()
	c := *n
	c.t = t
	c.refill(podA.id)
	return &c
}

// testEntries are smaller sizes of maps whose creation for each test would take long.
var testEntries = map[string]uint32{bpf.MapCtEst4: 1024, bpf.MapCtEst6: 1024, bpf.MapCtNew4: 1024, bpf.MapCtNew6: 1024, bpf.MapCtBurst4: 512, bpf.MapCtBurst6: 512, bpf.MapPolicy: 1024, bpf.MapFrags: 1024, bpf.MapFragsBurst: 1024,
	bpf.MapNat4: 65536, bpf.MapNat6: 32768}

// newNode returns a node that reports no verdicts, so that drops are the only events.
func newNode(t testing.TB) *node {
	t.Helper()
	return newNodeWith(t, map[string]uint32{bpf.VariableVerdictEvents: 0}, nil)
}

// newNodeWith returns a node with other load-time constants and sizes of maps.
func newNodeWith(t testing.TB, constants, entries map[string]uint32) *node {
	t.Helper()
	ns := testnet.New(t)
	ns.Do(func() { addLinks(t) })
	ns.Enter()
	n := &node{t: t, ns: ns, constants: constants, entries: entries}
	n.load()
	n.put(podA)
	n.put(podB)
	n.putHost(gateway4)
	n.putHost(gateway6)
	return n
}

// addLinks creates the devices that programs look up by index. They carry no packets: PROG_TEST_RUN only names them.
func addLinks(t testing.TB) {
	for name, index := range map[string]int{"poda": ifPodA, "podb": ifPodB, "stranger": ifUnmanaged, "host": ifHost,
		"uplink": ifUplink} {
		attributes := netlink.LinkAttrs{Name: name, Index: index}
		if index == ifUplink {
			attributes.HardwareAddr = uplinkMAC[:] // a frame to it is addressed to this host
		}
		link := &netlink.Veth{LinkAttrs: attributes, PeerName: name + "p"}
		if err := netlink.LinkAdd(link); err != nil {
			t.Errorf("add veth %s: %v", name, err)
		}
	}
}

// withoutSeed makes a hash map distribute its keys identically each time: with a random seed, the length of the chains in a lookup changed the instruction
// count of a program by up to 2.5 %.
func withoutSeed(spec *ebpf.MapSpec) {
	switch spec.Type {
	case ebpf.Hash, ebpf.PerCPUHash, ebpf.LRUHash, ebpf.LRUCPUHash, ebpf.HashOfMaps:
		spec.Flags |= unix.BPF_F_ZERO_SEED
	}
}

func (n *node) load() {
	n.t.Helper()
	specs, err := bpf.MapSpecs()
	if err != nil {
		n.t.Fatal(err)
	}
	n.maps, n.programs = map[string]*ebpf.Map{}, newPrograms(n.t)
	for name, spec := range specs {
		if entries := cmp.Or(n.entries[name], testEntries[name]); entries != 0 {
			spec.MaxEntries = entries
		}
		if _, counts := n.t.(*testing.B); counts {
			withoutSeed(spec)
		}
		m, err := ebpf.NewMap(spec)
		if err != nil {
			n.t.Fatalf("create map %s: %v", name, err)
		}
		n.t.Cleanup(func() { _ = m.Close() })
		n.maps[name] = m
	}
	if n.events, err = ringbuf.NewReader(n.maps[bpf.MapEvents]); err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = n.events.Close() })
}

func (n *node) set(v *ebpf.VariableSpec, value any) {
	n.t.Helper()
	if err := v.Set(value); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) loadProgram(name string) *ebpf.Program {
	n.t.Helper()
	return n.loadChanged(name, func(*ebpf.CollectionSpec) {})
}

// loadChanged loads a program with changes to its object.
func (n *node) loadChanged(name string, change func(*ebpf.CollectionSpec)) *ebpf.Program {
	n.t.Helper()
	spec, err := bpf.Load(name)
	if err != nil {
		n.t.Fatal(err)
	}
	change(spec)
	for name, value := range lifetimes {
		if v := spec.Variables[name]; v != nil {
			n.set(v, value)
		}
	}
	for name, value := range n.constants {
		if v := spec.Variables[name]; v == nil {
			continue // of another program
		} else if name == bpf.VariableNatShares { // of an endpoint; all others together have three times as much
			n.set(v, [4]uint32{value, 3 * value, value, 3 * value})
		} else if name == bpf.VariableNatGuarantees || name == bpf.VariableNatBeyond { // of both families
			n.set(v, [2]uint32{value, value})
		} else {
			n.set(v, value)
		}
	}
	replacements := map[string]*ebpf.Map{}
	for name := range spec.Maps {
		if m := n.maps[name]; m != nil {
			replacements[name] = m
			spec.Maps[name].MaxEntries, spec.Maps[name].Flags = m.MaxEntries(), m.Flags()
		}
	}
	coll, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: replacements})
	if err != nil {
		n.t.Fatalf("load %s: %+v", name, err)
	}
	n.programs.t.Cleanup(coll.Close)
	if steps := coll.Maps[bpf.MapPodSteps]; steps != nil {
		n.programs.steps, n.programs.work = steps, coll.Maps["flow_works"]
	}
	return coll.Programs[name]
}

func (n *node) update(name string, key, value any) {
	n.t.Helper()
	if err := n.maps[name].Put(key, value); err != nil {
		n.t.Fatalf("put into %s: %v", name, err)
	}
}

func (n *node) put(p pod) {
	n.t.Helper()
	n.update(bpf.MapEndpointFacts, uint32(p.id), p.facts())
	n.update(bpf.MapLinks, p.ifindex, uint32(p.id))
	n.update(bpf.MapEndpoints, bpf.NewAddrKey(p.ipv4), bpf.EndpointRef{Id: uint32(p.id)})
	n.update(bpf.MapEndpoints, bpf.NewAddrKey(p.ipv6), bpf.EndpointRef{Id: uint32(p.id)})
}

func (n *node) putHost(addr netip.Addr) {
	n.t.Helper()
	n.update(bpf.MapEndpoints, bpf.NewAddrKey(addr), bpf.EndpointRef{Flags: bpf.FlagHost})
}

// skBuff is struct __sk_buff of the kernel's interface, with the fields that tests set or read.
type skBuff struct {
	Len, PktType, Mark, QueueMapping, Protocol, VlanPresent, VlanTci, VlanProto, Priority uint32
	IngressIfindex, Ifindex, TcIndex                                                      uint32
	Cb                                                                                    [5]uint32
	Hash, TcClassid, Data, DataEnd, NapiID, Family, RemoteIP4, LocalIP4                   uint32
	RemoteIP6, LocalIP6                                                                   [4]uint32
	RemotePort, LocalPort, DataMeta                                                       uint32
	FlowKeys, Tstamp                                                                      uint64
	WireLen, GsoSegs                                                                      uint32
	Sk                                                                                    uint64
	GsoSize                                                                               uint32
	TstampType                                                                            uint8
	_                                                                                     [3]uint8
	Hwtstamp                                                                              uint64
}

// outcome is the result of a program for a packet.
type outcome struct {
	action uint32
	packet []byte
	mark   uint32
}

// run runs a program on one packet, as if on the device with this index.
func (n *node) run(program string, ifindex uint32, packet []byte) outcome {
	n.t.Helper()
	return n.runSkb(program, skBuff{Ifindex: ifindex}, packet)
}

func (n *node) runSkb(program string, in skBuff, packet []byte) outcome {
	n.t.Helper()
	var out skBuff
	opts := ebpf.RunOptions{Data: packet, DataOut: make([]byte, len(packet)+256), Context: in, ContextOut: &out}
	p := n.program(program)
	n.ran = time.Now()
	action, err := p.Run(&opts)
	if err != nil {
		n.t.Fatalf("run %s over %d bytes: %v", program, len(packet), err)
	}
	return outcome{action, opts.DataOut, out.Mark}
}

// count returns one slot of metrics, summed over all CPUs.
func (n *node) count(reason events.Reason, direction uint8) bpf.MetricsValue {
	n.t.Helper()
	return counted(n.t, n.maps[bpf.MapMetrics], reason, direction)
}

func counted(t testing.TB, metrics *ebpf.Map, reason events.Reason, direction uint8) bpf.MetricsValue {
	t.Helper()
	var perCPU []bpf.MetricsValue
	if err := metrics.Lookup(bpf.MetricsSlot(uint8(reason), direction), &perCPU); err != nil {
		t.Fatal(err)
	}
	var sum bpf.MetricsValue
	for _, v := range perCPU {
		sum.Packets += v.Packets
		sum.Bytes += v.Bytes
	}
	return sum
}

// event reads the next drop from the ring buffer; nil when there is none.
func (n *node) event() *events.Drop {
	n.t.Helper()
	n.events.SetDeadline(time.Now().Add(-time.Second))
	record, err := n.events.Read()
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	if err != nil {
		n.t.Fatal(err)
	}
	event, err := events.Decode(record.RawSample)
	if err != nil {
		n.t.Fatal(err)
	}
	drop, ok := event.(*events.Drop)
	if !ok {
		n.t.Fatalf("an event of another kind: %+v", event)
	}
	if want := 36 + len(drop.Packet); len(record.RawSample) != want {
		n.t.Fatalf("the record has %d bytes, want %d", len(record.RawSample), want)
	}
	return drop
}

// wantDrop runs a program on a packet and checks that the program drops it with a reason, counts it once, and reports it unless the reason is quiet.
func (n *node) wantDrop(program string, ifindex uint32, packet []byte, reason events.Reason, direction uint8) *events.Drop {
	n.t.Helper()
	before := n.count(reason, direction)
	got := n.run(program, ifindex, packet)
	after := n.count(reason, direction)
	event := n.event()
	if got.action != actShot {
		n.t.Errorf("action %d, want a drop for %q (event %+v)", got.action, reason, event)
		return nil
	}
	if after.Packets-before.Packets != 1 || after.Bytes-before.Bytes != uint64(len(packet)) {
		n.t.Errorf("%q was counted %+v and before %+v, want 1 packet of %d bytes more; event %+v", reason, after, before,
			len(packet), event)
	}
	if reason == events.ControlTraffic {
		if event != nil {
			n.t.Errorf("a quiet drop was reported: %+v", event)
		}
		return nil
	}
	if event == nil {
		n.t.Errorf("drop for %q was not reported", reason)
		return nil
	}
	if event.Reason != reason || event.Line == 0 || event.File.String() == "" {
		n.t.Errorf("reported %q at %s:%d, want %q", event.Reason, event.File, event.Line, reason)
	}
	captured := packet[:min(len(packet), 128)]
	if int(event.Length) != len(packet) || !gocmp.Equal(event.Packet, captured) {
		n.t.Errorf("captured %d bytes of %d: %x, want %x", len(event.Packet), event.Length, event.Packet, captured)
	}
	return event
}

// refill fills the bucket of drop events of an endpoint.
func (n *node) refill(id uint16) {
	n.t.Helper()
	n.update(bpf.MapDropTokens, uint32(id), bpf.TokenBucket{Tokens: 32, Refilled: 1 << 62})
}

// wantPacket compares whole packets.
func (n *node) wantPacket(got outcome, action uint32, packet []byte) {
	n.t.Helper()
	if event := n.event(); event != nil {
		n.t.Errorf("dropped for %q at %s:%d", event.Reason, event.File, event.Line)
	}
	if got.action != action {
		n.t.Errorf("action %d, want %d", int32(got.action), int32(action))
	}
	if diff := gocmp.Diff(hex.Dump(packet), hex.Dump(got.packet)); diff != "" {
		n.t.Errorf("packet (-want +got):\n%s", diff)
	}
}

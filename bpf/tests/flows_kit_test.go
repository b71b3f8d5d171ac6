package tests

import (
	"encoding/binary"
	"maps"
	"math/bits"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf/ringbuf"
	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/events"
)

const (
	protoTCP    = 6
	protoUDP    = 17
	protoSCTP   = 132
	protoICMPv4 = 1
	protoICMPv6 = 58
)

var protoICMP = map[int]uint8{4: protoICMPv4, 6: protoICMPv6}

// Lifetimes of flows on the nodes of the tests, in ticks. The shorter ones are longer than the defaults of the programs (10 s and 60 s), so that no flow
// expires by itself on a slow machine.
const (
	lifeTCP   = 7451 // established TCP connections: 8000 s, the default
	lifeSYN   = 3000 // TCP connections that are not established
	lifeClose = 1000 // TCP connections that were reset, or closed by both sides
	lifeAny   = 2000 // other protocols
)

var lifetimes = map[string]uint32{bpf.VariableCtTCPTimeout: lifeTCP, bpf.VariableCtTCPSynTimeout: lifeSYN, bpf.VariableCtTCPCloseTimeout: lifeClose,
	bpf.VariableCtAnyTimeout: lifeAny}

// ports sets the ports of a flow, or the identifier (the first) and type (the second) of an ICMP message.
func (f flow) ports(sport, dport uint16) flow { f.sport, f.dport = sport, dport; return f }

// back is the reply to f, as p sends it.
func (f flow) back(p pod) flow {
	return flow{from: p.mac, to: p.host, src: f.dst, dst: f.src, sport: f.dport, dport: f.sport}
}

// tcp is a segment with these flags: S, A, F, R, in any order.
func (f flow) tcp(t testing.TB, flags string) []byte {
	t.Helper()
	has := func(flag string) bool { return strings.Contains(flags, flag) }
	f.proto = layers.IPProtocolTCP
	proto, network, ip := f.network()
	tcp := &layers.TCP{SrcPort: layers.TCPPort(f.sport), DstPort: layers.TCPPort(f.dport), Window: 100,
		SYN: has("S"), ACK: has("A"), FIN: has("F"), RST: has("R")}
	if err := tcp.SetNetworkLayerForChecksum(network); err != nil {
		t.Fatal(err)
	}
	return serialize(t, ether(f.from, f.to, proto), ip, tcp)
}

// raw is a packet of any protocol that begins with its ports.
func (f flow) raw(t testing.TB, protocol uint8) []byte {
	t.Helper()
	f.proto = layers.IPProtocol(protocol)
	f.payload = append(gopacket.Payload{byte(f.sport >> 8), byte(f.sport), byte(f.dport >> 8), byte(f.dport)}, make([]byte, 28)...)
	return f.bytes(t)
}

// icmp is a message of a type, with the content after its checksum.
func (f flow) icmp(t testing.TB, kind, code uint8, rest []byte) []byte {
	t.Helper()
	if f.src.Is4() {
		f.proto = layers.IPProtocolICMPv4
		_, _, ip := f.network()
		return serialize(t, ether(f.from, f.to, layers.EthernetTypeIPv4), ip,
			&layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(kind, code), Id: uint16(rest[0])<<8 | uint16(rest[1]),
				Seq: uint16(rest[2])<<8 | uint16(rest[3])}, gopacket.Payload(rest[4:]))
	}
	return icmp6{from: f.from, to: f.to, src: f.src, dst: f.dst, kind: kind, code: code, ttl: 64, body: gopacket.Payload(rest)}.bytes(t)
}

// echo is an echo request or reply with the identifier id.
func (f flow) echo(t testing.TB, answer bool, id uint16) []byte {
	t.Helper()
	kind := uint8(8)
	switch {
	case f.src.Is6() && answer:
		kind = 129
	case f.src.Is6():
		kind = 128
	case answer:
		kind = 0
	}
	return f.icmp(t, kind, 0, []byte{byte(id >> 8), byte(id), 0, 1, 'h', 'e', 'l', 'l', 'o'})
}

// unreachable is an ICMP error about a packet, given as a frame: port unreachable or host unreachable.
func (f flow) unreachable(t testing.TB, about []byte) []byte {
	t.Helper()
	kind, code, header := uint8(3), uint8(3), 20
	if f.src.Is6() {
		kind, code, header = 1, 4, 40
	}
	embedded := about[14:min(len(about), 14+header+8)]
	return f.icmp(t, kind, code, append(make([]byte, 4), embedded...))
}

// rule is an entry of a policy.
type rule struct {
	kind        bpf.PolicyKind
	identity    uint32
	level       bpf.PolicyLevel
	protocol    uint8
	first, last uint16 // ports; last is 0 for a single one
	deny        bool
}

func (r rule) denying() rule { r.deny = true; return r }

// policyID is the policy id of tests; 1 is reserved.
const policyID = 300

// policy writes a policy with exactly these rules, and returns its shape.
func (n *node) policy(id uint32, rules ...rule) (shape uint32) {
	n.t.Helper()
	clearMap[bpf.PolicyKey](n.t, n, bpf.MapPolicy, func(k bpf.PolicyKey) bool { return k.Policy == id })
	clearMap[bpf.PolicyRangeKey](n.t, n, bpf.MapPolicyRanges, func(k bpf.PolicyRangeKey) bool { return k.Policy == id })
	for i, r := range rules {
		entry := bpf.PolicyEntry{Rule: uint32(i + 1)}
		if r.deny {
			entry.Deny = 1
		}
		if r.last == 0 {
			n.update(bpf.MapPolicy, bpf.NewPolicyKey(id, r.kind, r.identity, r.level, r.protocol, r.first), entry)
			shape |= bpf.ShapeEntry(r.kind, r.level)
			continue
		}
		for _, p := range portPrefixes(r.first, r.last) {
			n.update(bpf.MapPolicyRanges, bpf.NewPolicyRangeKey(id, r.kind, r.identity, r.protocol, p.port, p.bits), entry)
		}
		shape |= bpf.ShapeRange(r.kind)
	}
	return shape
}

// portPrefix is a block of ports with the first bits in common.
type portPrefix struct {
	port uint16
	bits int // 0 to 16
}

// portPrefixes returns the smallest list of blocks that cover exactly the ports from first to last; nil when first is above last.
func portPrefixes(first, last uint16) (out []portPrefix) {
	for at, end := uint32(first), uint32(last); at <= end; {
		size := bits.TrailingZeros32(at | 1<<16) // the largest block that can begin at this port
		for at+1<<size-1 > end {
			size--
		}
		out = append(out, portPrefix{uint16(at), 16 - size})
		at += 1 << size
	}
	return out
}

func clearMap[K any](t testing.TB, n *node, name string, which func(K) bool) {
	t.Helper()
	var (
		key   K
		value []byte
		keys  []K
	)
	all := n.maps[name].Iterate()
	for all.Next(&key, &value) {
		if which(key) {
			keys = append(keys, key)
		}
	}
	for _, k := range keys {
		if err := n.maps[name].Delete(k); err != nil {
			t.Fatal(err)
		}
	}
}

// facts changes the properties of an endpoint and increments their revision, as each write of the agent does.
func (n *node) facts(p pod, change func(*bpf.EndpointFacts)) {
	n.t.Helper()
	var f bpf.EndpointFacts
	if err := n.maps[bpf.MapEndpointFacts].Lookup(uint32(p.id), &f); err != nil {
		n.t.Fatal(err)
	}
	change(&f)
	f.Revision++
	n.update(bpf.MapEndpointFacts, uint32(p.id), f)
}

// ingress and egress assign a policy with these rules to an endpoint in one direction.
func (n *node) ingress(p pod, rules ...rule) {
	n.t.Helper()
	shape := n.policy(policyID, rules...)
	n.facts(p, func(f *bpf.EndpointFacts) { f.PolicyIngress, f.ShapeIngress = policyID, shape })
}

func (n *node) egress(p pod, rules ...rule) {
	n.t.Helper()
	shape := n.policy(policyID+1, rules...)
	n.facts(p, func(f *bpf.EndpointFacts) { f.PolicyEgress, f.ShapeEgress = policyID+1, shape })
}

// ctEntries returns all flows of a family in a map, without an order.
func (n *node) ctEntries(class string, family int) []bpf.CtEntry {
	n.t.Helper()
	return slices.Collect(maps.Values(n.ctFlows(class, family)))
}

// ctFlows returns the flows of a map by key. Different flows can have the same check.
func (n *node) ctFlows(class string, family int) map[string]bpf.CtEntry {
	n.t.Helper()
	var (
		key   []byte
		value bpf.CtEntry
	)
	flows := map[string]bpf.CtEntry{}
	all := n.maps[ctMap(class, family)].Iterate()
	for all.Next(&key, &value) {
		flows[string(key)] = value
	}
	if err := all.Err(); err != nil {
		n.t.Fatal(err)
	}
	return flows
}

func ctMap(class string, family int) string {
	return map[string]map[int]string{"new": {4: bpf.MapCtNew4, 6: bpf.MapCtNew6}, "burst": {4: bpf.MapCtBurst4, 6: bpf.MapCtBurst6}, "est": {4: bpf.MapCtEst4, 6: bpf.MapCtEst6}}[class][family]
}

// wantFlows checks the numbers of new and established flows.
func (n *node) wantFlows(family, fresh, established int) {
	n.t.Helper()
	if a, b := len(n.ctEntries("new", family)), len(n.ctEntries("est", family)); a != fresh || b != established {
		n.t.Errorf("%d flows are new and %d established, want %d and %d", a, b, fresh, established)
	}
}

// changeFlows changes every flow of a class.
func (n *node) changeFlows(class string, family int, change func(*bpf.CtEntry)) {
	n.t.Helper()
	var value bpf.CtEntry
	key := make([]byte, map[int]int{4: 16, 6: 40}[family])
	m := n.maps[ctMap(class, family)]
	all := m.Iterate()
	changed := map[string]bpf.CtEntry{}
	for all.Next(&key, &value) {
		change(&value)
		changed[string(key)] = value
	}
	for k, v := range changed {
		if err := m.Put([]byte(k), v); err != nil {
			n.t.Fatal(err)
		}
	}
}

// onlyFlow returns the single flow of a class.
func (n *node) onlyFlow(class string, family int) bpf.CtEntry {
	n.t.Helper()
	all := n.ctEntries(class, family)
	if len(all) != 1 {
		n.t.Fatalf("%d flows in %s, want 1", len(all), class)
	}
	return all[0]
}

// passes sends a packet from a pod and checks that it is delivered to another pod or, with actOK, passed to the stack.
func (n *node) passes(p pod, packet []byte, action uint32) {
	n.t.Helper()
	n.did(n.run(bpf.PodEgress, p.ifindex, packet), action)
}

// arrives sends a packet from the stack to a pod; ifindex is its ingress device, 0 when the node created it.
func (n *node) arrives(p pod, ifindex uint32, packet []byte) {
	n.t.Helper()
	n.did(n.runSkb(bpf.PodIngress, skBuff{Ifindex: p.ifindex, IngressIfindex: ifindex}, packet), actOK)
}

func (n *node) did(got outcome, action uint32) {
	n.t.Helper()
	if event := n.event(); event != nil {
		n.t.Errorf("dropped for %q at %s:%d", event.Reason, event.File, event.Line)
	}
	if got.action != action {
		n.t.Errorf("action %d, want %d", int32(got.action), int32(action))
	}
}

// wantEgressDrop sends a packet from a pod and checks that it is dropped.
func (n *node) wantEgressDrop(p pod, packet []byte, reason events.Reason) {
	n.t.Helper()
	n.wantDropReason(n.run(bpf.PodEgress, p.ifindex, packet), reason)
}

// wantIngressDrop sends a packet from the stack to a pod and checks that it is dropped.
func (n *node) wantIngressDrop(p pod, ifindex uint32, packet []byte, reason events.Reason) {
	n.t.Helper()
	n.wantDropReason(n.runSkb(bpf.PodIngress, skBuff{Ifindex: p.ifindex, IngressIfindex: ifindex}, packet), reason)
}

func (n *node) wantDropReason(got outcome, reason events.Reason) {
	n.t.Helper()
	n.refill(podA.id)
	n.refill(podB.id)
	event := n.event()
	if got.action != actShot {
		n.t.Errorf("action %d, want a drop for %q", int32(got.action), reason)
	} else if event != nil && event.Reason != reason {
		n.t.Errorf("dropped for %q at %s:%d, want %q", event.Reason, event.File, event.Line, reason)
	}
}

// ingressAllowed reports whether a packet that enters the node for a pod is allowed.
func (n *node) ingressAllowed(p pod, packet []byte) bool {
	n.t.Helper()
	got := n.runSkb(bpf.PodIngress, skBuff{Ifindex: p.ifindex, IngressIfindex: ifUplink}, packet)
	n.event()
	n.refill(p.id)
	return got.action == actOK
}

// outsideTo is a packet from an outside address to pod p, with ports.
func outsideTo(p pod, src netip.Addr, sport, dport uint16) flow {
	return received(p, src, p.addr(map[bool]int{true: 4, false: 6}[src.Is4()])).ports(sport, dport)
}

// signal returns the next signal to the collector, which must exist, and drops the others.
func (n *node) signal() (first bpf.CtSignal) {
	n.t.Helper()
	reader, err := ringbuf.NewReader(n.maps[bpf.MapCtSignals])
	if err != nil {
		n.t.Fatal(err)
	}
	defer reader.Close()
	reader.SetDeadline(time.Now().Add(-time.Second))
	record, err := reader.Read()
	if err != nil {
		n.t.Fatal(err)
	}
	first.Family = binary.NativeEndian.Uint32(record.RawSample)
	first.Endpoint = binary.NativeEndian.Uint32(record.RawSample[4:])
	return first
}

func prefixOf(addr netip.Addr, bits int) netip.Prefix { return netip.PrefixFrom(addr, bits) }

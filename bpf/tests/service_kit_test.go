package tests

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/loadbalancer"
)

// Addresses in the tests of services: an address of a service, a backend on another node, and the loopback addresses of a pod that is its own backend.
var (
	clusterIP = map[int]netip.Addr{4: netip.MustParseAddr("10.96.0.10"), 6: netip.MustParseAddr("fd00:96::10")}
	remotePod = map[int]netip.Addr{4: netip.MustParseAddr("10.2.0.21"), 6: netip.MustParseAddr("fd00:2::21")}
	loopback  = map[int]netip.Addr{4: netip.MustParseAddr("169.254.42.1"), 6: netip.MustParseAddr("100::a9fe:2a01")}
)

const (
	servicePort = 80
	backendPort = 8080
	serviceID   = 7
)

// service writes the entry of a frontend on the ClusterIP, with backends whose ids start at 100, each with its slot. change modifies the entry before it is
// written.
func (n *node) service(family int, protocol uint8, backends []netip.AddrPort, change ...func(*bpf.ServiceKey, *bpf.Service)) {
	n.t.Helper()
	s := bpf.Service{Id: serviceID, First: 40, Count: uint32(len(backends))}
	key := bpf.NewServiceKey(loadbalancer.Address{Addr: clusterIP[family], Port: servicePort, Protocol: loadbalancer.Protocol(protocol)}, bpf.ScopeExternal)
	for _, c := range change {
		c(&key, &s)
	}
	for i, b := range backends {
		id := 100 + uint32(i)
		n.update(bpf.MapBackends, id, bpf.NewBackend(loadbalancer.Address{Addr: b.Addr(), Port: b.Port(), Protocol: loadbalancer.Protocol(protocol)}, 0))
		n.update(bpf.MapServiceSlots, s.First+uint32(i), id)
		n.update(bpf.MapAffinityMembers, bpf.AffinityMember{Service: s.Id, Backend: id}, uint32(1))
	}
	n.update(bpf.MapServices, key, s)
}

// at returns backends that all have the same port.
func at(addrs ...netip.Addr) (out []netip.AddrPort) {
	for _, a := range addrs {
		out = append(out, netip.AddrPortFrom(a, backendPort))
	}
	return out
}

// serviceRequest is a packet of pod a to the service.
func serviceRequest(family int, sport uint16) flow {
	return sent(podA, podA.addr(family), clusterIP[family]).ports(sport, servicePort)
}

// translatedRequest is the same packet as the serving pod receives it.
func translatedRequest(family int, server pod, sport uint16) flow {
	return received(server, podA.addr(family), server.addr(family)).ports(sport, backendPort).withTTL(63)
}

// kinds builds packets of the protocols of services.
var kinds = map[uint8]func(t testing.TB, f flow) []byte{
	protoTCP: func(t testing.TB, f flow) []byte { return f.tcp(t, "S") },
	protoUDP: func(t testing.TB, f flow) []byte { return f.bytes(t) },
}

// eachService runs a test for both families and the protocols whose ports can be translated.
func eachService(t *testing.T, test func(t *testing.T, n *node, family int, protocol uint8)) {
	t.Helper()
	for _, family := range families {
		for _, protocol := range slices.Sorted(maps.Keys(kinds)) {
			t.Run(fmt.Sprintf("IPv%d/%d", family, protocol), func(t *testing.T) {
				t.Parallel()
				test(t, newNode(t), family, protocol)
			})
		}
	}
}

// natFlows returns the number of entries of translated flows.
func (n *node) natFlows(family int) (count int) {
	n.t.Helper()
	var key, value []byte
	all := n.maps[natMap(family)].Iterate()
	for all.Next(&key, &value) {
		count++
	}
	if err := all.Err(); err != nil {
		n.t.Fatal(err)
	}
	return count
}

func natMap(family int) string { return map[int]string{4: bpf.MapNat4, 6: bpf.MapNat6}[family] }

// wantNat checks the number of entries of translated flows.
func (n *node) wantNat(family, want int) {
	n.t.Helper()
	if got := n.natFlows(family); got != want {
		n.t.Errorf("%d entries of translated flows, want %d", got, want)
	}
}

// natExpire makes all translated flows expire.
func (n *node) natExpire(family int) {
	n.t.Helper()
	past := now(n.t) - 1
	if family == 4 {
		changeNat(n, bpf.MapNat4, func(_ bpf.NatKey4, e *bpf.NatEntry4) { e.Expires = past })
		return
	}
	changeNat(n, bpf.MapNat6, func(_ bpf.NatKey6, e *bpf.NatEntry6) { e.Expires = past })
}

func changeNat[K comparable, V any](n *node, name string, change func(K, *V)) {
	n.t.Helper()
	var (
		key   K
		value V
	)
	changed := map[K]V{}
	all := n.maps[name].Iterate()
	for all.Next(&key, &value) {
		change(key, &value)
		changed[key] = value
	}
	if err := all.Err(); err != nil {
		n.t.Fatal(err)
	}
	for k, v := range changed {
		n.update(name, k, v)
	}
}

// sctp is an SCTP packet, whose checksum covers no addresses and which programs do not change.
func (f flow) sctp(t testing.TB) []byte { return f.raw(t, protoSCTP) }

// udpSum sets the checksum of UDP.
func udpSum(family int, packet []byte, sum uint16) []byte {
	at := map[int]int{4: 14 + 20 + 6, 6: 14 + 40 + 6}[family]
	packet = slices.Clone(packet)
	packet[at], packet[at+1] = byte(sum>>8), byte(sum)
	return packet
}

// quoting is an ICMP error of f's sender about a packet, given as a frame, whose inner packet has this many bytes after the IP header.
func (f flow) quoting(t testing.TB, about []byte, bytes int) []byte {
	t.Helper()
	if f.src.Is4() {
		return f.icmp(t, 3, 3, append(make([]byte, 4), about[14:min(len(about), 14+20+bytes)]...))
	}
	return icmp6{from: f.from, to: f.to, src: f.src, dst: f.dst, kind: 1, code: 4, ttl: cmp.Or(f.ttl, 64),
		body: gopacket.Payload(append(make([]byte, 4), about[14:min(len(about), 14+40+bytes)]...))}.bytes(t)
}

func frontend(addr netip.Addr, port uint16, protocol uint8) loadbalancer.Address {
	return loadbalancer.Address{Addr: addr, Port: port, Protocol: loadbalancer.Protocol(protocol)}
}

// segment is a TCP segment with sequence numbers.
func segment(t testing.TB, f flow, flags string, seq, ack uint32, window uint16) []byte {
	t.Helper()
	has := func(flag string) bool { return strings.Contains(flags, flag) }
	f.proto = layers.IPProtocolTCP
	proto, network, ip := f.network()
	if v4, ok := ip.(*layers.IPv4); ok && has("R") {
		v4.Id = 0 // a reset by the programs
	}
	tcp := &layers.TCP{SrcPort: layers.TCPPort(f.sport), DstPort: layers.TCPPort(f.dport), Seq: seq, Ack: ack, Window: window,
		SYN: has("S"), ACK: has("A"), FIN: has("F"), RST: has("R")}
	if err := tcp.SetNetworkLayerForChecksum(network); err != nil {
		t.Fatal(err)
	}
	packet := serialize(t, ether(f.from, f.to, proto), ip, tcp)
	return packet[:map[bool]int{true: 54, false: 74}[f.src.Is4()]] // without padding
}

// icmpError is the ICMP error of the programs about a packet, given as a frame.
func icmpError(t testing.TB, f flow, about []byte) []byte {
	t.Helper()
	if f.src.Is6() {
		return icmp6{from: f.from, to: f.to, src: f.src, dst: f.dst, kind: 1, code: 4, ttl: 64,
			body: gopacket.Payload(append(make([]byte, 4), about[14:14+48]...))}.bytes(t)
	}
	return serialize(t, ether(f.from, f.to, layers.EthernetTypeIPv4),
		&layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolICMPv4, SrcIP: f.src.AsSlice(), DstIP: f.dst.AsSlice()},
		&layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(3, 3)}, gopacket.Payload(about[14:14+28]))
}

// tooBig is the ICMP error of the programs about a packet, given as a frame, that is longer than the path carries.
func tooBig(t testing.TB, f flow, about []byte, mtu uint16) []byte {
	t.Helper()
	if f.src.Is6() {
		return icmp6{from: f.from, to: f.to, src: f.src, dst: f.dst, kind: 2, ttl: 64,
			body: gopacket.Payload(append(binary.BigEndian.AppendUint32(nil, uint32(mtu)), about[14:14+48]...))}.bytes(t)
	}
	return serialize(t, ether(f.from, f.to, layers.EthernetTypeIPv4),
		&layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolICMPv4, SrcIP: f.src.AsSlice(), DstIP: f.dst.AsSlice()},
		&layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(3, 4), Seq: mtu}, gopacket.Payload(about[14:14+28]))
}

// long is a packet of 2,500 bytes of a protocol of services that may not be fragmented. A TCP segment has the flag ACK.
func (f flow) long(t testing.TB, protocol uint8) []byte {
	t.Helper()
	f.payload = make(gopacket.Payload, 2500)
	if protocol == protoUDP {
		return withoutFragments(f.bytes(t))
	}
	binary.BigEndian.PutUint16(f.payload, f.sport)
	binary.BigEndian.PutUint16(f.payload[2:], f.dport)
	if protocol == protoTCP {
		f.payload[12], f.payload[13] = 5<<4, 0x10
	}
	f.proto = layers.IPProtocol(protocol)
	return withoutFragments(f.bytes(t))
}

// natRest is the part of an entry of either family that tests change.
type natRest struct {
	reply   bool
	expires uint32
}

// natExpireSome makes the entries expire for which which returns true.
func (n *node) natExpireSome(family int, which func(natRest) bool) {
	n.t.Helper()
	past := now(n.t) - 1
	if family == 4 {
		changeNat(n, bpf.MapNat4, func(_ bpf.NatKey4, e *bpf.NatEntry4) {
			if which(natRest{e.Flags&bpf.NatReply != 0, e.Expires}) {
				e.Expires = past
			}
		})
		return
	}
	changeNat(n, bpf.MapNat6, func(_ bpf.NatKey6, e *bpf.NatEntry6) {
		if which(natRest{e.Flags&bpf.NatReply != 0, e.Expires}) {
			e.Expires = past
		}
	})
}

// natLeft returns the remaining lifetimes of the two entries of the only flow, the client's entry first.
func (n *node) natLeft(family int) (left [2]uint32) {
	n.t.Helper()
	n.wantNat(family, 2)
	at := now(n.t)
	n.natExpireSome(family, func(e natRest) bool {
		if e.reply {
			left[1] = e.expires - at
		} else {
			left[0] = e.expires - at
		}
		return false
	})
	return left
}

// wantNatTimeout checks that both entries of the only flow expire this number of ticks after a packet that was not sent before the tick began.
func (n *node) wantNatTimeout(what string, family int, began, want uint32) {
	n.t.Helper()
	left := n.natLeft(family)
	for _, ticks := range left {
		if passed := now(n.t) - began; ticks > want || ticks+passed < want {
			n.t.Errorf("%s expires in %v ticks, want %d, of which at most %d have passed", what, left, want, passed)
		}
	}
}

// clearNat deletes all translated flows.
func clearNat(n *node, family int) {
	n.t.Helper()
	if family == 4 {
		clearMap[bpf.NatKey4](n.t, n, bpf.MapNat4, func(bpf.NatKey4) bool { return true })
		return
	}
	clearMap[bpf.NatKey6](n.t, n, bpf.MapNat6, func(bpf.NatKey6) bool { return true })
}

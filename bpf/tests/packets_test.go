package tests

import (
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/waggle-net/waggle/pkg/mac"
)

// serialize builds a frame with correct lengths and checksums.
func serialize(t testing.TB, l ...gopacket.SerializableLayer) []byte {
	t.Helper()
	buf := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, l...); err != nil {
		t.Fatal(err)
	}
	return slices.Clone(buf.Bytes())
}

func ether(from, to mac.Addr, proto layers.EthernetType) *layers.Ethernet {
	return &layers.Ethernet{SrcMAC: from.HardwareAddr(), DstMAC: to.HardwareAddr(), EthernetType: proto}
}

// flow describes a UDP packet of either family. The zero values of ttl and proto mean 64 and UDP.
type flow struct {
	from, to     mac.Addr
	src, dst     netip.Addr
	ttl          uint8
	proto        layers.IPProtocol
	payload      gopacket.Payload
	fragmentMore bool
	fragmentAt   uint16 // in units of eight bytes
	sport, dport uint16 // 0 means 1234 and 53
}

// sent is a packet as the pod's stack sends it on the link.
func sent(p pod, src, dst netip.Addr) flow { return flow{from: p.mac, to: p.host, src: src, dst: dst} }

// received is a packet as the pod receives it.
func received(p pod, src, dst netip.Addr) flow {
	return flow{from: p.host, to: p.mac, src: src, dst: dst}
}

func (f flow) withTTL(ttl uint8) flow { f.ttl = ttl; return f }

func (f flow) network() (layers.EthernetType, gopacket.NetworkLayer, gopacket.SerializableLayer) {
	ttl, proto := f.ttl, f.proto
	if ttl == 0 {
		ttl = 64
	}
	if proto == 0 {
		proto = layers.IPProtocolUDP
	}
	if f.src.Is4() {
		ip := &layers.IPv4{Version: 4, Id: 7, TTL: ttl, Protocol: proto, SrcIP: f.src.AsSlice(), DstIP: f.dst.AsSlice(),
			FragOffset: f.fragmentAt}
		if f.fragmentMore {
			ip.Flags = layers.IPv4MoreFragments
		}
		return layers.EthernetTypeIPv4, ip, ip
	}
	ip := &layers.IPv6{Version: 6, HopLimit: ttl, NextHeader: proto, SrcIP: f.src.AsSlice(), DstIP: f.dst.AsSlice()}
	return layers.EthernetTypeIPv6, ip, ip
}

func (f flow) bytes(t testing.TB) []byte {
	t.Helper()
	proto, network, ip := f.network()
	payload := f.payload
	if payload == nil {
		payload = gopacket.Payload("some bytes")
	}
	if f.proto != 0 || f.fragmentAt != 0 {
		return serialize(t, ether(f.from, f.to, proto), ip, payload)
	}
	udp := &layers.UDP{SrcPort: 1234, DstPort: 53}
	if f.sport != 0 {
		udp.SrcPort, udp.DstPort = layers.UDPPort(f.sport), layers.UDPPort(f.dport)
	}
	if err := udp.SetNetworkLayerForChecksum(network); err != nil {
		t.Fatal(err)
	}
	return serialize(t, ether(f.from, f.to, proto), ip, udp, payload)
}

// arp builds an ARP message inside a frame.
func arp(t testing.TB, from, to mac.Addr, op uint16, senderMAC mac.Addr, sender netip.Addr, targetMAC mac.Addr,
	target netip.Addr) []byte {
	t.Helper()
	return serialize(t, ether(from, to, layers.EthernetTypeARP), &layers.ARP{
		AddrType: layers.LinkTypeEthernet, Protocol: layers.EthernetTypeIPv4, HwAddressSize: 6, ProtAddressSize: 4, Operation: op,
		SourceHwAddress: senderMAC[:], SourceProtAddress: sender.AsSlice(), DstHwAddress: targetMAC[:],
		DstProtAddress: target.AsSlice(),
	})
}

var (
	broadcast   = mac.Addr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	unspecified = netip.IPv6Unspecified()
	linkLocal   = netip.MustParseAddr("fe80::1:2")
	allNodes    = netip.MustParseAddr("ff02::1")
)

// groupMAC returns the Ethernet address of an IPv6 group.
func groupMAC(group netip.Addr) mac.Addr {
	b := group.As16()
	return mac.Addr{0x33, 0x33, b[12], b[13], b[14], b[15]}
}

// solicitedNode returns the group for solicitations of an address.
func solicitedNode(addr netip.Addr) netip.Addr {
	b, a := netip.MustParseAddr("ff02::1:ff00:0").As16(), addr.As16()
	copy(b[13:], a[13:])
	return netip.AddrFrom16(b)
}

// icmp6 builds an ICMPv6 message; extensions are between it and the IPv6 header.
type icmp6 struct {
	from, to mac.Addr
	src, dst netip.Addr
	kind     uint8
	code     uint8
	ttl      uint8
	body     gopacket.SerializableLayer
}

func (m icmp6) bytes(t testing.TB) []byte {
	t.Helper()
	ip := &layers.IPv6{Version: 6, HopLimit: m.ttl, NextHeader: layers.IPProtocolICMPv6, SrcIP: m.src.AsSlice(),
		DstIP: m.dst.AsSlice()}
	if m.ttl == 0 {
		ip.HopLimit = 255
	}
	icmp := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(m.kind, m.code)}
	if err := icmp.SetNetworkLayerForChecksum(ip); err != nil {
		t.Fatal(err)
	}
	body := m.body
	if body == nil {
		body = gopacket.Payload(make([]byte, 20))
	}
	return serialize(t, ether(m.from, m.to, layers.EthernetTypeIPv6), ip, icmp, body)
}

// solicitation is a neighbour solicitation for target; it has the sender's MAC as an option unless the source is unspecified.
func solicitation(p pod, src, dst, target netip.Addr) icmp6 {
	body := &layers.ICMPv6NeighborSolicitation{TargetAddress: net.IP(target.AsSlice())}
	if src != unspecified {
		body.Options = layers.ICMPv6Options{{Type: layers.ICMPv6OptSourceAddress, Data: p.mac[:]}}
	}
	to := p.host
	if dst.IsMulticast() {
		to = groupMAC(dst)
	}
	return icmp6{from: p.mac, to: to, src: src, dst: dst, kind: layers.ICMPv6TypeNeighborSolicitation, body: body}
}

// advertisement is the gateway's reply.
func advertisement(p pod, dst netip.Addr, flags uint8) icmp6 {
	return icmp6{from: p.host, to: p.mac, src: gateway6, dst: dst, kind: layers.ICMPv6TypeNeighborAdvertisement,
		body: &layers.ICMPv6NeighborAdvertisement{Flags: flags, TargetAddress: net.IP(gateway6.AsSlice()),
			Options: layers.ICMPv6Options{{Type: layers.ICMPv6OptTargetAddress, Data: p.host[:]}}}}
}

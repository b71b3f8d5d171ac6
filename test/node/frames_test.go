package node_test

import (
	"net"
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/waggle-net/waggle/test/nodekit"
)

// ends holds the link addresses of a pod's link and the IP addresses of the pod and its gateways.
type ends struct {
	host       string // name of the host end
	pod, peer  net.HardwareAddr
	ipv4, ipv6 netip.Addr
	gw4, gw6   netip.Addr
}

func endsOf(t *testing.T, pod *nodekit.Pod) ends {
	t.Helper()
	parse := func(text string) net.HardwareAddr {
		mac, err := net.ParseMAC(text)
		if err != nil {
			t.Fatal(err)
		}
		return mac
	}
	links := pod.Result.Interfaces
	return ends{host: links[0].Name, pod: parse(links[1].Mac), peer: parse(links[0].Mac), ipv4: pod.Addr(false), ipv6: pod.Addr(true),
		gw4: pod.Gateway(false), gw6: pod.Gateway(true)}
}

// frame serializes layers with correct lengths and checksums.
func frame(t *testing.T, l ...gopacket.SerializableLayer) []byte {
	t.Helper()
	buf := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, l...); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// udp returns a datagram from port 1111 to port 2222 of either family.
func udp(t *testing.T, from, to net.HardwareAddr, src, dst netip.Addr, ttl uint8) []byte {
	t.Helper()
	datagram := &layers.UDP{SrcPort: 1111, DstPort: 2222}
	payload := gopacket.Payload("waggle")
	if src.Is4() {
		ip := &layers.IPv4{Version: 4, TTL: ttl, Protocol: layers.IPProtocolUDP, SrcIP: src.AsSlice(), DstIP: dst.AsSlice()}
		_ = datagram.SetNetworkLayerForChecksum(ip)
		return frame(t, &layers.Ethernet{SrcMAC: from, DstMAC: to, EthernetType: layers.EthernetTypeIPv4}, ip, datagram, payload)
	}
	ip := &layers.IPv6{Version: 6, HopLimit: ttl, NextHeader: layers.IPProtocolUDP, SrcIP: src.AsSlice(), DstIP: dst.AsSlice()}
	_ = datagram.SetNetworkLayerForChecksum(ip)
	return frame(t, &layers.Ethernet{SrcMAC: from, DstMAC: to, EthernetType: layers.EthernetTypeIPv6}, ip, datagram, payload)
}

// arp returns an ARP request.
func arp(t *testing.T, from, sender net.HardwareAddr, senderIP, target netip.Addr) []byte {
	t.Helper()
	return frame(t, &layers.Ethernet{SrcMAC: from, DstMAC: layers.EthernetBroadcast, EthernetType: layers.EthernetTypeARP},
		&layers.ARP{AddrType: layers.LinkTypeEthernet, Protocol: layers.EthernetTypeIPv4, HwAddressSize: 6, ProtAddressSize: 4,
			Operation: layers.ARPRequest, SourceHwAddress: sender, SourceProtAddress: senderIP.AsSlice(),
			DstHwAddress: make([]byte, 6), DstProtAddress: target.AsSlice()})
}

// icmp6 returns an ICMPv6 message of the link, with hop limit 255, which proves that no router forwarded it.
func icmp6(t *testing.T, from, to net.HardwareAddr, src, dst netip.Addr, kind uint8, body gopacket.SerializableLayer) []byte {
	t.Helper()
	ip := &layers.IPv6{Version: 6, HopLimit: 255, NextHeader: layers.IPProtocolICMPv6, SrcIP: src.AsSlice(), DstIP: dst.AsSlice()}
	message := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(kind, 0)}
	_ = message.SetNetworkLayerForChecksum(ip)
	return frame(t, &layers.Ethernet{SrcMAC: from, DstMAC: to, EthernetType: layers.EthernetTypeIPv6}, ip, message, body)
}

// group returns the Ethernet address of an IPv6 multicast group.
func group(addr netip.Addr) net.HardwareAddr {
	b := addr.As16()
	return net.HardwareAddr{0x33, 0x33, b[12], b[13], b[14], b[15]}
}

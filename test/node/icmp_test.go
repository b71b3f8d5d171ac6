package node_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/vishvananda/netlink"

	"github.com/waggle-net/waggle/pkg/podlink"
	"github.com/waggle-net/waggle/test/nodekit"
)

// decoded parses frames.
func decoded(frames [][]byte) (packets []gopacket.Packet) {
	for _, f := range frames {
		packets = append(packets, gopacket.NewPacket(f, layers.LayerTypeEthernet, gopacket.Default))
	}
	return packets
}

// anyFrame decodes frames for a condition of their packets.
func anyFrame(is func(gopacket.Packet) bool) func(frame []byte) bool {
	return func(frame []byte) bool {
		return is(gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.Default))
	}
}

// The node answers a packet whose TTL or hop limit expires with time exceeded, from the gateway of the same family.
func TestPrivilegedICMP_TimeExceeded(t *testing.T) {
	t.Parallel()
	node := startNode(t, nodekit.Options{})
	a, b := addPod(t, node, "a"), addPod(t, node, "b")
	from := endsOf(t, a)
	for _, family := range families {
		for name, target := range map[string]netip.Addr{"pod": b.Addr(family.ipv6), "outside": outsideAddr(family.ipv6)} {
			t.Run(family.name+" to a "+name, func(t *testing.T) {
				src := a.Addr(family.ipv6)
				exceeded := func(p gopacket.Packet) bool { return isTimeExceeded(p, src, family.ipv6) }
				frames, err := nodekit.CaptureUntil(a, "eth0", anyFrame(exceeded), func() error {
					return nodekit.SendFrame(a, "eth0", udp(t, from.pod, from.peer, src, target, 1))
				})
				if err != nil {
					t.Fatal(err)
				}
				if !slices.ContainsFunc(decoded(frames), exceeded) {
					t.Errorf("no time exceeded among %d frames: %v", len(frames), decoded(frames))
				}
			})
		}
	}
}

func outsideAddr(ipv6 bool) netip.Addr {
	if ipv6 {
		return nodekit.OutsideIPv6.Addr()
	}
	return nodekit.OutsideIPv4.Addr()
}

func isTimeExceeded(p gopacket.Packet, to netip.Addr, ipv6 bool) bool {
	if ipv6 {
		ip, _ := p.Layer(layers.LayerTypeIPv6).(*layers.IPv6)
		message, _ := p.Layer(layers.LayerTypeICMPv6).(*layers.ICMPv6)
		return ip != nil && message != nil && bytes.Equal(ip.DstIP, to.AsSlice()) && message.TypeCode.Type() == layers.ICMPv6TypeTimeExceeded
	}
	ip, _ := p.Layer(layers.LayerTypeIPv4).(*layers.IPv4)
	message, _ := p.Layer(layers.LayerTypeICMPv4).(*layers.ICMPv4)
	return ip != nil && message != nil && bytes.Equal(ip.DstIP, to.AsSlice()) && message.TypeCode.Type() == layers.ICMPv4TypeTimeExceeded
}

// The node answers a packet that does not fit the path behind the node with the size that fits.
func TestPrivilegedICMP_TooBigForTheNetwork(t *testing.T) {
	t.Parallel()
	node := startNode(t, nodekit.Options{AgentArgs: []string{"--mtu", "1500"}})
	a := addPod(t, node, "a")
	routeBack(t, node)
	if err := node.Do(func() error {
		uplink, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		return netlink.LinkSetMTU(uplink, 1300)
	}); err != nil {
		t.Fatal(err)
	}
	from := endsOf(t, a)
	for _, family := range families {
		t.Run(family.name, func(t *testing.T) {
			if err := nodekit.TCP(a, node.OutsideHost(), outsideAddr(family.ipv6), 1<<18); err != nil {
				t.Errorf("a stream does not find its size: %v", err)
			}
			big := bigDatagram(t, from, a.Addr(family.ipv6), outsideAddr(family.ipv6))
			reported := func(p gopacket.Packet) bool { return tooBig(p) == 1300 }
			frames, err := nodekit.CaptureUntil(a, "eth0", anyFrame(reported), func() error { return nodekit.SendFrame(a, "eth0", big) })
			if err != nil {
				t.Fatal(err)
			}
			if !slices.ContainsFunc(decoded(frames), reported) {
				t.Errorf("no ICMP error reports that 1300 bytes fit: %v", decoded(frames))
			}
		})
	}
}

// bigDatagram returns a datagram that must not be fragmented.
func bigDatagram(t *testing.T, from ends, src, dst netip.Addr) []byte {
	b := udp(t, from.pod, from.peer, src, dst, 64)
	if src.Is6() {
		ip := &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: layers.IPProtocolUDP, SrcIP: src.AsSlice(), DstIP: dst.AsSlice()}
		return frame(t, &layers.Ethernet{SrcMAC: from.pod, DstMAC: from.peer, EthernetType: layers.EthernetTypeIPv6}, ip,
			gopacket.Payload(append(slices.Clone(b[54:]), make([]byte, 1400)...)))
	}
	ip := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolUDP, Flags: layers.IPv4DontFragment,
		SrcIP: src.AsSlice(), DstIP: dst.AsSlice()}
	return frame(t, &layers.Ethernet{SrcMAC: from.pod, DstMAC: from.peer, EthernetType: layers.EthernetTypeIPv4}, ip,
		gopacket.Payload(append(slices.Clone(b[34:]), make([]byte, 1400)...)))
}

// tooBig returns the MTU in an ICMP error, or 0.
func tooBig(p gopacket.Packet) int {
	if m, ok := p.Layer(layers.LayerTypeICMPv4).(*layers.ICMPv4); ok &&
		m.TypeCode == layers.CreateICMPv4TypeCode(layers.ICMPv4TypeDestinationUnreachable, layers.ICMPv4CodeFragmentationNeeded) {
		return int(m.Seq)
	}
	if m, ok := p.Layer(layers.LayerTypeICMPv6).(*layers.ICMPv6); ok && m.TypeCode.Type() == layers.ICMPv6TypePacketTooBig {
		payload := m.LayerPayload()
		return int(payload[2])<<8 | int(payload[3])
	}
	return 0
}

// A pod that loses its permanent neighbour entry requests its gateway's address and gets a reply.
func TestPrivilegedNeighbour_GatewayRequest_GetsReply(t *testing.T) {
	t.Parallel()
	node := startNode(t, nodekit.Options{})
	a, b := addPod(t, node, "a"), addPod(t, node, "b")
	if err := a.Do(func() error {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		return deleteNeighbours(link)
	}); err != nil {
		t.Fatal(err)
	}
	pingBoth(t, a, b)
	want := endsOf(t, a)
	if err := a.Do(func() error {
		all, err := netlink.NeighList(0, netlink.FAMILY_ALL)
		for _, gateway := range []netip.Addr{want.gw4, want.gw6} {
			if !slices.ContainsFunc(all, func(n netlink.Neigh) bool {
				return n.IP.Equal(gateway.AsSlice()) && n.HardwareAddr.String() == want.peer.String() && n.State&netlink.NUD_PERMANENT == 0
			}) {
				err = errors.Join(err, fmt.Errorf("%s was not learnt: %v", gateway, all))
			}
		}
		return err
	}); err != nil {
		t.Error(err)
	}
}

// A packet to an unassigned address of the pod range is dropped with its reason and counted.
func TestPrivilegedHost_UnassignedPodAddress_IsDropped(t *testing.T) {
	t.Parallel()
	node := startNode(t, withMetrics())
	addPod(t, node, "a")
	const reason = "No matching local container found"
	series := fmt.Sprintf(`waggle_datapath_packets_total{direction="egress",reason=%q}`, reason)
	for _, target := range []netip.Addr{netip.MustParseAddr("10.244.1.251"), netip.MustParseAddr("fd00:10:244:1::bad")} {
		eventually(t, func() error { return leadsTo(node, target, podlink.HostDevice) }) // follows ADD with a short delay
		before, err := scrape(node)
		if err != nil {
			t.Fatal(err)
		}
		if err := nodekit.Spoof(node.Host(), routerOf(t, node, target.Is6()), target); err != nil {
			t.Fatal(err)
		}
		eventually(t, func() error {
			text, err := node.Waggle(t.Context(), "drops")
			if err == nil && !(strings.Contains(text, reason) && strings.Contains(text, target.String())) {
				err = fmt.Errorf("the drop of %s is not shown:\n%s", target, text)
			}
			return err
		})
		after, err := scrape(node)
		if err != nil {
			t.Fatal(err)
		}
		if after[series] != before[series]+1 {
			t.Errorf("%s: %s went from %v to %v", target, series, before[series], after[series])
		}
	}
}

// leadsTo returns an error when the route to an address leads to another device.
func leadsTo(node *nodekit.Node, target netip.Addr, device string) error {
	return node.Do(func() error {
		routes, err := netlink.RouteGet(target.AsSlice())
		if err != nil || len(routes) == 0 {
			return fmt.Errorf("no route to %s: %w", target, err)
		}
		link, err := netlink.LinkByIndex(routes[0].LinkIndex)
		if err == nil && link.Attrs().Name != device {
			err = fmt.Errorf("the route to %s leads to %s", target, link.Attrs().Name)
		}
		return err
	})
}

func routerOf(t *testing.T, node *nodekit.Node, ipv6 bool) (router netip.Addr) {
	t.Helper()
	if err := node.Do(func() error {
		link, err := netlink.LinkByName("waggle_host")
		if err != nil {
			return err
		}
		addrs, err := netlink.AddrList(link, netlink.FAMILY_ALL)
		for _, a := range addrs {
			if addr, ok := netip.AddrFromSlice(a.IP); ok && addr.Unmap().Is6() == ipv6 && !addr.IsLinkLocalUnicast() {
				router = addr.Unmap()
			}
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return router
}

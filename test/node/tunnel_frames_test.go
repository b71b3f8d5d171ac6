package node_test

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/waggle-net/waggle/test/nodekit"
)

// outer is a tunnel packet on the wire.
type outer struct {
	from  netip.Addr
	to    netip.Addr
	ttl   uint8 // or hop limit
	udp   *layers.UDP
	flags byte // of VXLAN
	vni   uint32
	inner gopacket.Packet
}

// outers returns the tunnel packets among frames.
func outers(frames [][]byte) (all []outer) {
	for _, p := range decoded(frames) {
		var o outer
		o.udp, _ = p.Layer(layers.LayerTypeUDP).(*layers.UDP)
		if o.udp == nil || o.udp.DstPort != 8472 || len(o.udp.Payload) < 8 {
			continue
		}
		switch ip := p.NetworkLayer().(type) {
		case *layers.IPv4:
			o.ttl = ip.TTL
		case *layers.IPv6:
			o.ttl = ip.HopLimit
		}
		ends := p.NetworkLayer().NetworkFlow()
		o.from, _ = netip.AddrFromSlice(ends.Src().Raw())
		o.to, _ = netip.AddrFromSlice(ends.Dst().Raw())
		o.flags, o.vni = o.udp.Payload[0], binary.BigEndian.Uint32(o.udp.Payload[4:])>>8
		o.inner = gopacket.NewPacket(o.udp.Payload[8:], layers.LayerTypeEthernet, gopacket.Default)
		all = append(all, o)
	}
	return all
}

// Packets on the wire have the format of Cilium: the VNI is the identity of the sending pod, 6 for a node.
func TestPrivilegedTunnel_FramesOnTheWire(t *testing.T) {
	t.Parallel()
	onUnderlays(t, func(t *testing.T, ipv6 bool, args []string) {
		all := startKubeCluster(t, 2, args...)
		one, two := all[0], all[1]
		client := one.startPod(t, "client", map[string]string{"app": "client"})
		server := two.startPod(t, "server", map[string]string{"app": "server"})
		for _, n := range all {
			awaitTunnel(t, n.Node, 2)
		}
		for _, family := range families {
			for name, c := range map[string]struct {
				from nodekit.NetNS
				vni  uint32
			}{"pod": {client, one.identityOf(t, client).Identity}, "node": {one.Host(), 6}} {
				t.Run(family.name+" from a "+name, func(t *testing.T) {
					frames, err := nodekit.Capture(two.Host(), "eth0", func() error { return nodekit.Ping(c.from, server.Addr(family.ipv6), 56) })
					if err != nil {
						t.Fatal(err)
					}
					if !slices.ContainsFunc(outers(frames), func(o outer) bool {
						target, _ := netip.AddrFromSlice(o.inner.NetworkLayer().NetworkFlow().Dst().Raw())
						return target == server.Addr(family.ipv6) && o.vni == c.vni && o.flags == 8 && (o.udp.Checksum == 0) == !ipv6 && o.ttl == 64 &&
							o.from == one.UplinkAddr(ipv6) && o.to == two.UplinkAddr(ipv6)
					}) {
						t.Errorf("no packet with VNI %d to %s from %s: %+v", c.vni, server.Addr(family.ipv6), one.UplinkAddr(ipv6), outers(frames))
					}
					for _, p := range decoded(frames) {
						if network := p.NetworkLayer(); network != nil && network.NetworkFlow().Dst().String() == server.Addr(family.ipv6).String() {
							t.Errorf("a packet without the tunnel: %v", p)
						}
					}
				})
			}
		}
	})
}

// Processes of a node also reach pods of other nodes from the address of a device. The replies return through the tunnel, because the underlay may drop packets
// with the address of a pod.
func TestPrivilegedTunnel_HostProcesses(t *testing.T) {
	t.Parallel()
	onUnderlays(t, func(t *testing.T, _ bool, args []string) {
		c := startCluster(t, 2, args...)
		one, two := c.Nodes[0], c.Nodes[1]
		server := addPod(t, two, "server")
		awaitTunnel(t, one, 2)
		awaitTunnel(t, two, 2)
		for _, family := range families {
			source, target := one.UplinkAddr(family.ipv6), server.Addr(family.ipv6)
			frames, err := nodekit.Capture(two.Host(), "eth0", func() error { return nodekit.TCPFrom(one.Host(), source, server, target, 1<<16) })
			if err != nil {
				t.Errorf("%s: %v", family.name, err)
			}
			var inside int
			for _, o := range outers(frames) {
				if source, _ := netip.AddrFromSlice(o.inner.NetworkLayer().NetworkFlow().Src().Raw()); source == target {
					inside++
				}
			}
			if inside == 0 {
				t.Errorf("%s: no reply in the tunnel", family.name)
			}
			for _, p := range decoded(frames) {
				if network := p.NetworkLayer(); network != nil && network.NetworkFlow().Src().String() == target.String() {
					t.Errorf("%s: a packet without the tunnel: %v", family.name, p)
				}
			}
		}
	})
}

// A packet from a host that is not a node, or from a node with the address of another node's pod, is dropped, counted and does not arrive. A packet that a pod
// encapsulates does not enter the tunnel either.
func TestPrivilegedTunnel_SpoofedFramesAreDropped(t *testing.T) {
	t.Parallel()
	onUnderlays(t, func(t *testing.T, ipv6 bool, args []string) {
		c := startCluster(t, 3, append(args, "--prometheus-serve-addr", metricsAddress)...)
		one, two, three := c.Nodes[0], c.Nodes[1], c.Nodes[2]
		pods := map[*nodekit.Node]*nodekit.Pod{}
		for _, n := range c.Nodes {
			pods[n] = addPod(t, n, "pod-"+n.Name())
		}
		awaitTunnel(t, one, 2)
		awaitTunnel(t, two, 4)
		for _, family := range families {
			own, other, target := pods[one].Addr(family.ipv6), pods[three].Addr(family.ipv6), pods[two].Addr(family.ipv6)
			heard := nodekit.Listen(t, pods[two], target, 2222)
			for name, lie := range map[string]struct {
				from      nodekit.NetNS
				source    netip.Addr // inner
				vni       uint32
				at        *nodekit.Node
				direction string
				reason    string
			}{
				"from no node":                 {one.OutsideHost(), own, 5, two, "ingress", "No node ID found"},
				"with the pod of a third node": {one.Host(), other, 5, two, "ingress", "Inner source is not of the sending node"},
				"with a pod of the receiver":   {one.Host(), target.Next(), 5, two, "ingress", "Inner source is not of the sending node"},
				"as the host":                  {one.Host(), own, 1, two, "ingress", "Invalid identity"},
				"without identity":             {one.Host(), own, 0, two, "ingress", "Invalid identity"},
				"from a pod":                   {pods[one], own, 5, one, "egress", "Encapsulation traffic is prohibited"},
			} {
				t.Run(family.name+" "+name, func(t *testing.T) {
					series := fmt.Sprintf(`waggle_datapath_packets_total{direction=%q,reason=%q}`, lie.direction, lie.reason)
					before, err := scrape(lie.at)
					if err != nil {
						t.Fatal(err)
					}
					sendVXLAN(t, lie.from, two.UplinkAddr(ipv6), lie.vni, lie.source, target)
					eventually(t, func() error {
						after, err := scrape(lie.at)
						if err == nil && after[series] != before[series]+1 {
							err = fmt.Errorf("%s went from %v to %v", series, before[series], after[series])
						}
						return err
					})
				})
			}
			// A valid packet of the node arrives, and none of the invalid ones did.
			sendVXLAN(t, one.Host(), two.UplinkAddr(ipv6), 5, own, target)
			if source := <-heard; source != own {
				t.Errorf("%s: a datagram from %s arrived, want the one from %s", family.name, source, own)
			}
			select {
			case source := <-heard:
				t.Errorf("%s: one more datagram arrived, from %s", family.name, source)
			default:
			}
		}
	})
}

// sendVXLAN sends a datagram to port 2222 of dst, encapsulated by the test, to the tunnel of a node.
func sendVXLAN(t *testing.T, from nodekit.NetNS, node netip.Addr, vni uint32, src, dst netip.Addr) {
	t.Helper()
	header := make([]byte, 8)
	header[0] = 8
	binary.BigEndian.PutUint32(header[4:], vni<<8)
	inner := udp(t, net.HardwareAddr{2, 0, 0, 0, 0, 1}, net.HardwareAddr{2, 0, 0, 0, 0, 2}, src, dst, 64)
	if err := from.Do(func() error {
		conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(node, 8472)))
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = conn.Write(append(header, inner...))
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

package tests

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/gopacket/gopacket"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/events"
	"github.com/waggle-net/waggle/pkg/testnet"
)

const (
	encapAll = bpf.EncapSends | bpf.EncapReceivesIPv4 | bpf.EncapReceivesIPv6
	// Offsets of the parts of a tunnel frame.
	outerIPAt  = 14
	outerUDPAt = 34
	vxlanAt    = 42
	innerAt    = 64 // inner IP header
)

// fromNode is a tunnel frame from an address of otherNode or thirdNode, as it arrives at the uplink.
func fromNode(t testing.TB, from netip.Addr, vni uint32, inner []byte) []byte {
	t.Helper()
	header := binary.BigEndian.AppendUint32([]byte{8, 0, 0, 0}, vni<<8)
	f := coming(on(from, 40000), on(nodeIn[int(bpf.NewAddrKey(from).Family)], tunnelPort))
	f.payload = append(gopacket.Payload(header), inner...)
	frame := f.bytes(t)
	if from.Is4() { // over IPv6 the checksum is required
		binary.BigEndian.PutUint16(frame[outerUDPAt+6:], 0)
	}
	return frame
}

// unpadded removes the padding after the packet of a frame.
func unpadded(frame []byte) []byte {
	if frame[14]>>4 == 4 {
		return frame[:14+binary.BigEndian.Uint16(frame[16:])]
	}
	return frame[:54+binary.BigEndian.Uint16(frame[18:])]
}

// sumIPv4 recomputes the checksum of the IPv4 header at an offset.
func sumIPv4(frame []byte, at int) {
	header := frame[at : at+int(frame[at]&15)*4]
	header[10], header[11] = 0, 0
	var sum uint32
	for i := 0; i < len(header); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(header[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(header[10:], ^uint16(sum))
}

// decapsulates reports whether the kernel supports decapsulation of a family in netdev_ingress.
func decapsulates(family int) bool {
	return bpf.NewEncapProbe()().Modes&map[int]uint32{4: bpf.EncapReceivesIPv4, 6: bpf.EncapReceivesIPv6}[family] != 0
}

// kernelAtLeast reports whether the running kernel has this version or a newer one.
func kernelAtLeast(t *testing.T, major, minor int) bool {
	t.Helper()
	var name unix.Utsname
	check(t, unix.Uname(&name))
	var has [2]int
	if _, err := fmt.Sscanf(unix.ByteSliceToString(name.Release[:]), "%d.%d", &has[0], &has[1]); err != nil {
		t.Fatal(err)
	}
	return has[0] > major || has[0] == major && has[1] >= minor
}

// Linux 6.1 and 6.2 cannot remove an outer IPv4 header from an IPv6 packet.
func TestPrivilegedEncapProbe(t *testing.T) {
	t.Parallel()
	testnet.RequirePrivileges(t)
	support := bpf.NewEncapProbe()()
	t.Attr("support", support.String())
	all := uint32(encapAll)
	if !kernelAtLeast(t, 6, 3) {
		all &^= bpf.EncapReceivesIPv6 | bpf.EncapSendsIPv6
	}
	if support.Modes != all || (support.Err == nil) != (all == encapAll) {
		t.Errorf("%+v, want modes %d", support, all)
	}
}

// A packet for a local pod goes to the program of the pod, with the mark that the tunnel device's program would have set.
func TestPrivilegedNetdevIngress_Decapsulates(t *testing.T) {
	t.Parallel()
	onTunnelWith(t, encapAll, func(t *testing.T, n *node, family int) {
		if !decapsulates(family) {
			frame := fromNode(t, otherNode[4], identityDistant, unpadded(inside(distantPod[family], podA.addr(family)).bytes(t)))
			n.wantPacket(n.run(bpf.NetdevIngress, ifUplink, frame), actUnspec, frame)
			return
		}
		src, dst := distantPod[family], podA.addr(family)
		for name, c := range map[string]struct {
			inner    flow
			from     netip.Addr
			vni      uint32
			identity uint32
		}{
			"a known pod":                       {inside(src, dst), otherNode[4], identityDistant, identityDistant},
			"a pod in a known range":            {inside(src.Next(), dst), otherNode[4], identityFromVNI, identityFromVNI},
			"an unknown identity":               {inside(src.Next(), dst), otherNode[4], 0x4799, 0},
			"a node":                            {inside(otherNode[family], dst), otherNode[4], 6, 6},
			"of a third node":                   {inside(thirdPod[family], dst), thirdNode[4], identityDistant, identityDistant},
			"two hops are left":                 {inside(src, dst).withTTL(2), otherNode[4], identityDistant, identityDistant},
			"a datagram to the tunnel of a pod": {inside(src, dst).ports(1, tunnelPort), otherNode[4], identityDistant, identityDistant},
		} {
			t.Run(name, func(t *testing.T) {
				n := n.as(t)
				want := c.inner
				want.from, want.to, want.ttl = podA.host, podA.mac, max(want.ttl, 1)-1
				if c.inner.ttl == 0 {
					want.ttl = 63
				}
				got := n.run(bpf.NetdevIngress, ifUplink, fromNode(t, c.from, c.vni, unpadded(c.inner.bytes(t))))
				n.wantPacket(got, actRedirect, unpadded(want.bytes(t)))
				if got.mark != markOf(c.identity) {
					t.Errorf("mark %#x, want %#x", got.mark, markOf(c.identity))
				}
			})
		}
		t.Run("of an agent with other fields", func(t *testing.T) { // Cilium writes the MAC addresses of the pod's link, and an IP ID
			n, frame := n.as(t), fromNode(t, otherNode[4], identityDistant, unpadded(inside(src, dst).bytes(t)))
			copy(frame[innerAt-14:], []byte{2, 0, 0, 0, 0, 7, 6, 0, 0, 0, 0, 9})
			copy(frame[outerIPAt+4:], []byte{0x12, 0x34, 0, 0, 57}) // ID, no DF, TTL
			frame[outerIPAt+1] = 0x28                               // DSCP
			sumIPv4(frame, outerIPAt)
			want := inside(src, dst)
			want.from, want.to, want.ttl = podA.host, podA.mac, 63
			n.wantPacket(n.run(bpf.NetdevIngress, ifUplink, frame), actRedirect, unpadded(want.bytes(t)))
		})
		if c := n.count(events.Forwarded, bpf.DirectionIngress); c.Packets != 8 {
			t.Errorf("counted %+v", c)
		}
		if c := n.count(events.VNIDiffers, bpf.DirectionIngress); c.Packets != 0 {
			t.Errorf("differences of the VNI: %+v", c)
		}
		n.run(bpf.NetdevIngress, ifUplink, fromNode(t, otherNode[4], identityFromVNI, unpadded(inside(src, dst).bytes(t))))
		if c := n.count(events.VNIDiffers, bpf.DirectionIngress); c.Packets != 1 {
			t.Errorf("differences of the VNI: %+v, want 1", c)
		}
	})
}

// Unusual and invalid packets are left to the tunnel device unchanged, and its program reports the reason.
func TestPrivilegedNetdevIngress_LeavesTheUnusualToTheDevice(t *testing.T) {
	t.Parallel()
	onTunnelWith(t, encapAll, func(t *testing.T, n *node, family int) {
		src, dst := distantPod[family], podA.addr(family)
		plain := func() []byte { return fromNode(t, otherNode[4], identityDistant, unpadded(inside(src, dst).bytes(t))) }
		with := func(vni uint32, src, dst netip.Addr) []byte {
			return fromNode(t, otherNode[4], vni, unpadded(inside(src, dst).bytes(t)))
		}
		edit := func(f func(frame []byte) []byte) []byte {
			frame := f(plain())
			sumIPv4(frame, outerIPAt)
			if family == 4 && len(frame) > innerAt+20 && frame[innerAt] == 0x45 {
				sumIPv4(frame, innerAt)
			}
			return frame
		}
		set := func(at int, value byte) []byte {
			return edit(func(frame []byte) []byte { frame[at] = value; return frame })
		}
		cases := map[string][]byte{
			"VNI 0":                          with(0, src, dst),
			"VNI 1":                          with(1, src, dst),
			"a reserved bit after the VNI":   set(vxlanAt+7, 1),
			"other flags":                    set(vxlanAt, 0x88),
			"no VNI":                         set(vxlanAt, 0),
			"a pod of a third node":          with(5, thirdPod[family], dst),
			"a pod of this node":             with(5, podB.addr(family), dst),
			"a client outside":               with(2, client[family], dst),
			"to no pod":                      with(5, src, podB.addr(family).Next()),
			"to the node":                    with(5, src, gateways[family]),
			"to a third node":                with(5, src, thirdPod[family]),
			"to the outside":                 with(5, src, client[family]),
			"the TTL runs out":               fromNode(t, otherNode[4], 5, unpadded(inside(src, dst).withTTL(1).bytes(t))),
			"congestion outside":             set(outerIPAt+1, 3),
			"the outer packet is a fragment": set(outerIPAt+6, 0x20),
			"UDP length too long":            edit(func(f []byte) []byte { f[outerUDPAt+5]++; return f }),
			"UDP length too short":           edit(func(f []byte) []byte { f[outerUDPAt+5]--; return f }),
			"an unchecked UDP checksum":      set(outerUDPAt+6, 1),
			"neither IPv4 nor IPv6":          set(innerAt-2, 0x09),
			"the EtherType of the other family": edit(func(f []byte) []byte {
				copy(f[innerAt-2:], map[int]string{6: "\x08\x00", 4: "\x86\xdd"}[family])
				return f
			}),
			"another version": set(innerAt, 0x75),
			"padding after the packet": edit(func(f []byte) []byte {
				f = append(f, 0, 0)
				binary.BigEndian.PutUint16(f[outerIPAt+2:], uint16(len(f)-outerIPAt))
				binary.BigEndian.PutUint16(f[outerUDPAt+4:], uint16(len(f)-outerUDPAt))
				return f
			}),
			"padding after the frame": append(plain(), 0, 0),
			"a tunnel in the tunnel":  fromNode(t, otherNode[4], 5, fromNode(t, otherNode[4], 5, unpadded(inside(src, dst).bytes(t)))),
			"options outside": func() []byte {
				frame := plain()
				frame = slices.Insert(frame, outerUDPAt, 1, 1, 1, 1)
				frame[outerIPAt]++
				binary.BigEndian.PutUint16(frame[outerIPAt+2:], uint16(len(frame)-outerIPAt))
				sumIPv4(frame, outerIPAt)
				return frame
			}(),
		}
		if family == 4 {
			cases["options inside"] = set(innerAt, 0x46)
			cases["a first fragment"] = set(innerAt+6, 0x20)
			cases["a later fragment"] = set(innerAt+7, 0x0a)
		} else {
			for name, next := range map[string]byte{"hop-by-hop options": 0, "a routing header": 43, "a fragment header": 44, "destination options": 60} {
				cases[name+" inside"] = set(innerAt+6, next)
			}
		}
		for name, frame := range cases {
			t.Run(name, func(t *testing.T) {
				n := n.as(t)
				n.wantPacket(n.run(bpf.NetdevIngress, ifUplink, frame), actUnspec, frame)
			})
		}
		for name, ctx := range map[string]skBuff{"an aggregate": {Ifindex: ifUplink, GsoSize: 40, GsoSegs: 2}, "of a link that leads nowhere out": {Ifindex: ifPodB}} {
			t.Run(name, func(t *testing.T) {
				n := n.as(t)
				n.wantPacket(n.runSkb(bpf.NetdevIngress, ctx, plain()), actUnspec, plain())
			})
		}
		t.Run("to another host", func(t *testing.T) {
			n, frame := n.as(t), plain()
			frame[5]++
			n.wantPacket(n.run(bpf.NetdevIngress, ifUplink, frame), actUnspec, frame)
		})
		t.Run("to another address of this node", func(t *testing.T) {
			n, frame, other := n.as(t), plain(), nodeOut[4].As4()
			copy(frame[outerIPAt+16:], other[:])
			sumIPv4(frame, outerIPAt)
			n.wantPacket(n.run(bpf.NetdevIngress, ifUplink, frame), actUnspec, frame)
		})
		t.Run("from no node", func(t *testing.T) {
			n.as(t).wantDrop(bpf.NetdevIngress, ifUplink, fromNode(t, client[4], 5, unpadded(inside(src, dst).bytes(t))), events.NoNode, bpf.DirectionIngress)
		})
		t.Run("longer than the MTU of the pod's link", func(t *testing.T) {
			n, long := n.as(t), inside(src, dst)
			long.payload = make([]byte, 1500)
			frame := fromNode(t, otherNode[4], 5, long.bytes(t))
			n.wantPacket(n.run(bpf.NetdevIngress, ifUplink, frame), actUnspec, frame)
		})
		t.Run("truncated", func(t *testing.T) {
			n, frame := n.as(t), plain()
			for length := outerUDPAt; length < len(frame); length++ {
				got := n.run(bpf.NetdevIngress, ifUplink, frame[:length])
				n.wantPacket(got, actUnspec, frame[:length])
			}
		})
		t.Run("truncated inside", func(t *testing.T) {
			n, inner := n.as(t), unpadded(inside(src, dst).bytes(t))
			for length := range inner {
				frame := fromNode(t, otherNode[4], identityDistant, inner[:length])
				n.wantPacket(n.run(bpf.NetdevIngress, ifUplink, frame), actUnspec, frame)
			}
		})
	})
}

// While hooks of a previous generation may be attached, which cannot use the result of netdev_ingress, the device decapsulates.
func TestPrivilegedNetdevIngress_DecapsulatesWhenAllHooksAreNew(t *testing.T) {
	t.Parallel()
	onTunnelWith(t, encapAll, func(t *testing.T, n *node, family int) {
		frame := fromNode(t, otherNode[4], identityDistant, unpadded(inside(distantPod[family], podA.addr(family)).bytes(t)))
		for protocol, action := range map[bpf.Protocol]uint32{0: actUnspec, bpf.Protocol(bpf.ProtocolLowest): actUnspec, bpf.Protocol(bpf.ProtocolHighest): actRedirect} {
			n.update(bpf.MapDatapath, uint32(0), bpf.DatapathState{Protocol: protocol})
			if !decapsulates(family) {
				action = actUnspec
			}
			if got := n.run(bpf.NetdevIngress, ifUplink, frame); got.action != action {
				t.Errorf("protocol %d: action %d, want %d", protocol, int32(got.action), int32(action))
			}
		}
	})
}

// Each family is decapsulated only on kernels that support it.
func TestPrivilegedNetdevIngress_DecapsulatesSupportedFamilies(t *testing.T) {
	t.Parallel()
	for modes, families := range map[uint32][]int{bpf.EncapReceivesIPv4: {4}, bpf.EncapReceivesIPv6: {6}, bpf.EncapSends: nil} {
		onTunnelWith(t, modes, func(t *testing.T, n *node, family int) {
			in := unpadded(inside(distantPod[family], podA.addr(family)).bytes(t))
			frame := fromNode(t, otherNode[4], identityDistant, in)
			got := n.run(bpf.NetdevIngress, ifUplink, frame)
			if !slices.Contains(families, family) || !decapsulates(family) {
				n.wantPacket(got, actUnspec, frame)
			} else if got.action != actRedirect || len(got.packet) != len(in) {
				t.Errorf("modes %d: action %d, %d bytes", modes, got.action, len(got.packet))
			}
		})
	}
}

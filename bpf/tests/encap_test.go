package tests

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/events"
	"github.com/waggle-net/waggle/pkg/testnet"
)

// Datagrams and streams pass between a pod and a pod of another node in each mode, and the tunnel device handles the packets that programs leave to it.
func TestPrivilegedReal_Tunnel(t *testing.T) {
	t.Parallel()
	for name, modes := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newTunnelNode(t, modes)
			for _, family := range families {
				pod, distant := listenUDP(t, s.a, podA.addr(family)), listenUDP(t, s.distant, distantPod[family])
				for _, size := range []int{1, 100, 1300} {
					gotBefore, sentBefore := s.throughDevice()
					s.exchange(t, pod, distant, size)
					got, sent := s.throughDevice()
					if by := sent != sentBefore; by != (modes&bpf.EncapSends == 0) {
						t.Errorf("IPv%d, %d bytes: the device has sent %d packets", family, size, sent-sentBefore)
					}
					if by := got != gotBefore; by == (modes&bpf.EncapReceivesIPv4 != 0 && decapsulates(family)) {
						t.Errorf("IPv%d, %d bytes: the device has received %d packets; last event %+v", family, size, got-gotBefore, s.event())
					}
				}
				data := bytes.Repeat([]byte("waggle dance "), 100_000)
				for way, ends := range map[string][2]*testnet.Namespace{"to": {s.a, s.distant}, "from": {s.distant, s.a}} {
					target := distantPod[family]
					if ends[1] == s.a {
						target = podA.addr(family)
					}
					if got := stream(t, ends[0], ends[1], target, data); !bytes.Equal(got, data) {
						t.Errorf("IPv%d %s the other node: %d of %d bytes arrived; last event %+v", family, way, len(got), len(data), s.event())
					}
				}
			}
		})
	}
}

// Streams and datagrams arrive intact where the kernel has to compute checksums, segment and verify instead of devices.
func TestPrivilegedReal_TunnelWithoutOffloads(t *testing.T) {
	t.Parallel()
	for name, off := range map[string][]uint32{
		"without checksums": {ethtoolTxChecksum}, "without segmentation": {ethtoolTSO}, "without anything": {ethtoolTxChecksum, ethtoolTSO, ethtoolGRO},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newTunnelNode(t, encapAll)
			for _, command := range off {
				s.host.Do(func() { check(t, withoutOffload("backbone", command)) })
				s.distant.Do(func() { check(t, withoutOffload("eth0", command)) })
			}
			for _, family := range families {
				s.exchange(t, listenUDP(t, s.a, podA.addr(family)), listenUDP(t, s.distant, distantPod[family]), 1300)
				data := bytes.Repeat([]byte("waggle dance "), 50_000)
				for way, ends := range map[string][2]*testnet.Namespace{"to": {s.a, s.distant}, "from": {s.distant, s.a}} {
					target := distantPod[family]
					if ends[1] == s.a {
						target = podA.addr(family)
					}
					if got := stream(t, ends[0], ends[1], target, data); !bytes.Equal(got, data) {
						t.Errorf("IPv%d %s the other node: %d of %d bytes arrived; last event %+v", family, way, len(got), len(data), s.event())
					}
				}
			}
		})
	}
}

// Programs build the same frames as the tunnel device, except for the identification of the outer packet.
func TestPrivilegedReal_TunnelFramesEqualDeviceFrames(t *testing.T) {
	t.Parallel()
	byDevice, byProgram := newTunnelNode(t, 0), newTunnelNode(t, bpf.EncapSends)
	for _, family := range families {
		plain := sent(podA, podA.addr(family), distantPod[family])
		frames := map[string][]byte{
			"UDP":               unpadded(plain.bytes(t)),
			"TCP":               unpadded(plain.ports(4000, 80).tcp(t, "S")),
			"ICMP":              unpadded(plain.echo(t, false, 7)),
			"SCTP":              unpadded(plain.raw(t, protoSCTP)),
			"two hops are left": unpadded(plain.withTTL(2).bytes(t)),
		}
		for name, tos := range map[string]byte{"DSCP": 0xb8, "ECT(0)": 2, "ECT(1)": 1, "congestion": 0xbb} {
			frame := unpadded(plain.bytes(t))
			if family == 4 {
				frame[15] = tos
				sumIPv4(frame, 14)
			} else {
				frame[14], frame[15] = 0x60|tos>>4, tos<<4
			}
			frames[name] = frame
		}
		if family == 4 {
			whole := unpadded(plain.bytes(t))
			whole[20] = 0x40 // it may not be fragmented
			sumIPv4(whole, 14)
			frames["DF"] = whole
		}
		for name, frame := range frames {
			want := byDevice.outerOf(t, func() error { return sendFrame(frame) })
			_, before := byProgram.throughDevice()
			got := byProgram.outerOf(t, func() error { return sendFrame(frame) })
			if _, after := byProgram.throughDevice(); after != before {
				t.Errorf("IPv%d, %s: the device has sent it", family, name)
			}
			for _, outer := range [][]byte{want, got} {
				if len(outer) < innerAt {
					t.Fatalf("IPv%d, %s: no frame, last event %+v", family, name, byProgram.event())
				}
				if sum := outer[10:12]; !bytes.Equal(sum, summed(outer)) {
					t.Errorf("IPv%d, %s: checksum %x", family, name, sum)
				}
				copy(outer[4:], []byte{0, 0})
				copy(outer[10:], []byte{0, 0})
			}
			if diff := gocmp.Diff(hex.Dump(want), hex.Dump(got)); diff != "" {
				t.Errorf("IPv%d, %s (-device +program):\n%s", family, name, diff)
			}
		}
	}
}

// A datagram that is too long for the tunnel, for the path to the node, or for the route of the outer packet, causes an ICMP error; its sender learns the
// MTU, and a stream adapts its segment size.
func TestPrivilegedReal_TunnelMTUExceeded(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		mtu    uint32 // of the tunnel
		route  int    // MTU of the outer packet's route; 0 leaves it unchanged
		device int    // MTU of the egress device; 0 leaves it unchanged
		path   uint16 // MTU of the path
		want   int
	}{"tunnel": {1410, 0, 0, 0, 1410}, "route": {tunnelMTU, 1400, 0, 0, 1350}, "device": {tunnelMTU, 0, 1380, 0, 1330}, "path": {tunnelMTU, 0, 0, 1340, 1340},
		"path and tunnel": {1410, 0, 0, 1420, 1410}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newTunnelNode(t, encapAll)
			s.update(bpf.MapEncap, uint32(0), bpf.Encap{Mtu: c.mtu, Mac: hostMAC})
			var slot bpf.Node
			check(t, s.maps[bpf.MapNodes].Lookup(uint32(otherID), &slot))
			slot.Mtu = c.path
			s.update(bpf.MapNodes, uint32(otherID), slot)
			s.host.Do(func() {
				link, err := netlink.LinkByName("backbone")
				check(t, err)
				if c.route != 0 {
					check(t, netlink.RouteReplace(&netlink.Route{LinkIndex: ifBackbone, Dst: hostNet(otherNode[4]), MTU: c.route, MTULock: true}))
				}
				if c.device != 0 {
					check(t, netlink.LinkSetMTU(link, c.device))
				}
			})
			for _, family := range families {
				before := s.count(events.TooBig, bpf.DirectionEgress)
				server := listenUDP(t, s.distant, distantPod[family])
				var client *net.UDPConn
				s.a.Do(func() {
					var err error
					client, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(portOf(server)))
					check(t, err)
				})
				defer client.Close()
				header := map[int]int{4: 28, 6: 48}[family]
				if _, err := client.Write(make([]byte, c.want-header+1)); err != nil {
					t.Fatalf("IPv%d: %v", family, err)
				}
				if err := awaitTooBig(client); err != nil || pathMTU(client, family) != c.want {
					t.Errorf("IPv%d: the MTU of the path is %d, want %d: %v", family, pathMTU(client, family), c.want, err)
				}
				if after := s.count(events.TooBig, bpf.DirectionEgress); after.Packets != before.Packets+1 {
					t.Errorf("IPv%d: %d packets were too big, want 1", family, after.Packets-before.Packets)
				}
				full := make([]byte, c.want-header)
				_, err := client.Write(full)
				check(t, err)
				if n, err := limited(t, server).Read(make([]byte, 2000)); err != nil || n != len(full) {
					t.Errorf("IPv%d: %d bytes of a full datagram arrived: %v", family, n, err)
				}
				data := bytes.Repeat([]byte("waggle dance "), 50_000)
				if got := stream(t, s.a, s.distant, distantPod[family], data); !bytes.Equal(got, data) {
					t.Errorf("IPv%d: %d of %d bytes of a stream arrived", family, len(got), len(data))
				}
			}
		})
	}
}

// awaitTooBig waits for the error of a connected socket after an ICMP error about a datagram that was too big, and clears it. The kernel first changes the MTU
// of the path, then sets the error, with which a later write would fail.
func awaitTooBig(conn *net.UDPConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	return wait("the ICMP error", func() (is bool, err error) {
		failed := raw.Control(func(fd uintptr) {
			var number int
			number, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
			is = unix.Errno(number) == unix.EMSGSIZE
		})
		return is, errors.Join(failed, err)
	})
}

// pathMTU returns the kernel's MTU of the path of a connected socket.
func pathMTU(conn *net.UDPConn, family int) (mtu int) {
	level, name := unix.IPPROTO_IP, unix.IP_MTU
	if family == 6 {
		level, name = unix.IPPROTO_IPV6, unix.IPV6_MTU
	}
	raw, err := conn.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { mtu, err = unix.GetsockoptInt(int(fd), level, name) })
	}
	if err != nil {
		return -1
	}
	return mtu
}

// Packets that programs do not encapsulate pass through the stack and the device as if programs encapsulated none.
func TestPrivilegedReal_TunnelFallsBackToDevice(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		prepare  func(s *surroundings) error
		size     int
		families []int
	}{
		"no MTU is known":                    {func(s *surroundings) error { s.update(bpf.MapEncap, uint32(0), bpf.Encap{}); return nil }, 100, families},
		"the external device has no program": {func(s *surroundings) error { return s.maps[bpf.MapNetdevs].Delete(uint32(ifBackbone)) }, 100, families},
		"MTU below the minimum of IPv6": {func(*surroundings) error {
			return netlink.RouteReplace(&netlink.Route{LinkIndex: ifBackbone, Dst: hostNet(otherNode[4]), MTU: 1300, MTULock: true})
		}, 1220, []int{6}}, // the device fragments the outer packet
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newTunnelNode(t, bpf.EncapSends)
			var err error
			s.host.Do(func() { err = c.prepare(s) })
			check(t, err)
			for _, family := range c.families {
				pod, distant := listenUDP(t, s.a, podA.addr(family)), listenUDP(t, s.distant, distantPod[family])
				_, before := s.throughDevice()
				s.exchange(t, pod, distant, c.size)
				if _, after := s.throughDevice(); after == before {
					t.Errorf("IPv%d: the device has sent nothing", family)
				}
			}
		})
	}
	t.Run("packets", func(t *testing.T) {
		t.Parallel()
		s := newTunnelNode(t, bpf.EncapSends)
		for _, family := range families {
			plain := sent(podA, podA.addr(family), distantPod[family])
			frames := map[string][]byte{"padded": plain.bytes(t), "a first fragment": unpadded(plain.ports(5000, 53).part(t, 9, 0, true)), "a later one": unpadded(plain.ports(5000, 53).part(t, 9, 3, false))}
			if family == 4 {
				options := slices.Insert(unpadded(plain.bytes(t)), 34, 1, 1, 1, 1)
				options[14]++
				binary.BigEndian.PutUint16(options[16:], uint16(len(options)-14))
				sumIPv4(options, 14)
				frames["options"] = options
			} else {
				delete(frames, "padded") // it is longer than the minimum frame
				options := slices.Insert(unpadded(plain.bytes(t)), 54, 17, 0, 1, 4, 0, 0, 0, 0)
				options[20] = 60 // destination options
				options[19] += 8
				frames["options"] = options
			}
			for _, name := range []string{"padded", "a first fragment", "a later one", "options"} {
				frame := frames[name]
				if frame == nil {
					continue
				}
				_, before := s.throughDevice()
				if outer := s.outerOf(t, func() error { return sendFrame(frame) }); len(outer) < innerAt {
					t.Errorf("IPv%d, %s: no frame, last event %+v", family, name, s.event())
				}
				if _, after := s.throughDevice(); after != before+1 {
					t.Errorf("IPv%d, %s: the device has sent %d packets, want 1", family, name, after-before)
				}
			}
		}
	})
}

// Streams of both families pass over an underlay that carries less than the minimum MTU of pods. The tunnel device fragments packets of IPv6, for which pods
// cannot learn a smaller MTU.
func TestPrivilegedReal_TunnelTinyMTU(t *testing.T) {
	t.Parallel()
	for _, mtu := range []int{1280, 1000, 576} {
		for name, modes := range map[string]uint32{"the device does all": 0, "programs do both": encapAll} {
			t.Run(fmt.Sprintf("%d bytes, %s", mtu, name), func(t *testing.T) {
				t.Parallel()
				s := newTunnelNode(t, modes)
				s.update(bpf.MapEncap, uint32(0), bpf.Encap{Mtu: 1280, Mac: hostMAC})
				for device, ns := range map[string]*testnet.Namespace{"backbone": s.host, "eth0": s.distant} {
					ns.Do(func() {
						link, err := netlink.LinkByName(device)
						check(t, err)
						check(t, netlink.LinkSetMTU(link, mtu))
					})
				}
				data := bytes.Repeat([]byte("waggle dance "), 5_000)
				for _, family := range families {
					if got := stream(t, s.a, s.distant, distantPod[family], data); !bytes.Equal(got, data) {
						t.Errorf("IPv%d to the other node: %d of %d bytes arrived; last event %+v", family, len(got), len(data), s.event())
					}
					if got := stream(t, s.distant, s.a, podA.addr(family), data); !bytes.Equal(got, data) {
						t.Errorf("IPv%d from the other node: %d of %d bytes arrived; last event %+v", family, len(got), len(data), s.event())
					}
				}
			})
		}
	}
}

// ICMP errors about packets of the tunnel reach the pod that sent the packet, and ICMP errors of the pod reach the other node's pod.
func TestPrivilegedReal_TunnelErrors(t *testing.T) {
	t.Parallel()
	for name, modes := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newTunnelNode(t, modes)
			for _, family := range families {
				for way, c := range map[string]struct {
					ns *testnet.Namespace
					to netip.Addr
				}{"to": {s.a, distantPod[family]}, "from": {s.distant, podA.addr(family)}} {
					var conn net.Conn
					c.ns.Do(func() {
						var err error
						conn, err = net.Dial("udp", netip.AddrPortFrom(c.to, 7).String())
						check(t, err)
					})
					defer conn.Close()
					_, err := conn.Write([]byte("anybody?"))
					check(t, err)
					if _, err := limited(t, conn).Read(make([]byte, 1)); !errors.Is(err, unix.ECONNREFUSED) {
						t.Errorf("IPv%d %s the other node: %v, want %v; last event %+v", family, way, err, unix.ECONNREFUSED, s.event())
					}
				}
			}
		})
	}
}

// summed returns an IPv4 header with the correct checksum.
func summed(header []byte) []byte {
	header = bytes.Clone(header[:20])
	sumIPv4(header, 0)
	return header[10:12]
}

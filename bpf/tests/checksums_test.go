package tests

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/tc"
)

const ifCompleter = 120 // the device that completes checksums; its peer has the next index

// complete creates the pair of devices that completes checksums, and routes packets to the other node through it.
func (s *surroundings) complete() {
	s.t.Helper()
	s.host.Do(func() {
		handle, err := tc.Open()
		check(s.t, err)
		defer handle.Close()
		pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "waggle_csum", Index: ifCompleter}, PeerName: "waggle_csum2"}
		check(s.t, netlink.LinkAdd(pair))
		peer, err := netlink.LinkByName("waggle_csum2")
		check(s.t, err)
		at := tc.Ingress(peer.Attrs().Index)
		check(s.t, each(
			func() error { return withoutOffload("waggle_csum", ethtoolTxChecksum) },
			func() error { return handle.EnsureClsact(peer.Attrs().Index, tc.Blocks{}) },
			func() error { return handle.ReplaceFilter(at, bpf.HostEgress, s.program(bpf.HostEgress).FD()) },
			func() error { return setUp("waggle_csum2") }, // the first end sends immediately if it is set up last
			func() error { return setUp("waggle_csum") },
		))
	})
	s.completes(otherID, otherNode[4], nodeIn[4], ifCompleter)
}

// Devices of the underlay receive packets with partial checksums, and with a completing device they receive packets with complete checksums; streams and
// datagrams pass.
func TestPrivilegedReal_TunnelCompletesChecksums(t *testing.T) {
	t.Parallel()
	for name, modes := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newTunnelNode(t, modes)
			for _, completed := range []bool{false, true} {
				if completed {
					s.complete()
				}
				for _, family := range families {
					pod, distant := listenUDP(t, s.a, podA.addr(family)), listenUDP(t, s.distant, distantPod[family])
					s.exchange(t, pod, distant, 1300)
					data := bytes.Repeat([]byte("waggle dance "), 50_000)
					if got := stream(t, s.a, s.distant, distantPod[family], data); !bytes.Equal(got, data) {
						t.Errorf("completed %v, IPv%d: %d of %d bytes arrived; last event %+v", completed, family, len(got), len(data), s.event())
					}
					for _, protocol := range []string{"udp", "tcp"} {
						const port = 9
						frame := s.outerTo(t, port, func() error { return knock(protocol, netip.AddrPortFrom(distantPod[family], port)) })
						if len(frame) < innerAt {
							t.Fatalf("completed %v, IPv%d, %s: no frame, last event %+v", completed, family, protocol, s.event())
						}
						if got := isSummed(frame[innerAt-outerIPAt:]); got != completed {
							t.Errorf("completed %v, IPv%d, %s: the frame has its checksum: %v", completed, family, protocol, got)
						}
					}
				}
			}
			// The path has a smaller MTU than the tunnel, and the sender learns the MTU.
			slot := bpf.Node{Family: 4, Underlay: bpf.NewAddrKey(otherNode[4]).Addr, UnderlaySource: bpf.NewAddrKey(nodeIn[4]).Addr, Ifindex: ifCompleter, Mtu: 1300}
			s.update(bpf.MapNodes, uint32(otherID), slot)
			afterTick()
			for _, family := range families {
				data := bytes.Repeat([]byte("waggle dance "), 5_000)
				if got := stream(t, s.a, s.distant, distantPod[family], data); !bytes.Equal(got, data) {
					t.Errorf("narrow path, IPv%d: %d of %d bytes arrived; last event %+v", family, len(got), len(data), s.event())
				}
			}
		})
	}
}

// knock sends a datagram to an address, or starts a connection without waiting for it.
func knock(protocol string, to netip.AddrPort) error {
	if protocol == "udp" {
		conn, err := net.Dial("udp", to.String())
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = conn.Write([]byte("waggle dance"))
		return err
	}
	family, target := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()})
	if to.Addr().Is4() {
		target = &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}
	} else {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Connect(fd, target); !errors.Is(err, unix.EINPROGRESS) {
		return err
	}
	return nil
}

// isSummed reports whether the checksum of a TCP segment or a UDP datagram is correct. The packet begins with its IP header.
func isSummed(packet []byte) bool {
	addrs, protocol, rest := packet[8:40], packet[6], packet[40:]
	if packet[0]>>4 == 4 {
		addrs, protocol, rest = packet[12:20], packet[9], packet[20:]
	}
	pseudo := binary.BigEndian.AppendUint16(append(bytes.Clone(addrs), 0, protocol), uint16(len(rest)))
	var sum uint32
	for _, part := range [][]byte{pseudo, rest} {
		if len(part)%2 != 0 {
			part = append(bytes.Clone(part), 0)
		}
		for i := 0; i < len(part); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(part[i:]))
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return sum == 0xffff
}

package tests

import (
	"encoding/binary"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/tc"
	"github.com/waggle-net/waggle/pkg/mac"
)

const (
	ifVXLAN      = 107
	tunnelMTU    = 1450
	tunnelDevice = "waggle_vxlan"
)

var hostMAC = mac.Addr{2, 6, 6, 6, 6, 6} // of waggle_host

// newTunnelNode is a real node whose programs implement the given modes of the tunnel; its device does the rest. The other node runs no programs: a device
// with a fixed VNI encapsulates and decapsulates.
func newTunnelNode(t *testing.T, modes uint32) *surroundings {
	t.Helper()
	s := newSurroundings(t, ethernetOnly, map[string]uint32{bpf.VariableTunnelPort: tunnelPort, bpf.VariableEncapModes: modes})
	for id, addrs := range map[uint16]map[int]netip.Addr{bpf.NodeThis: nodeIn, otherID: otherNode} {
		s.update(bpf.MapNodeAddrs, bpf.NewAddrKey(addrs[4]), bpf.NodeAddr{Node: id, Kind: bpf.NodeUnderlay})
	}
	s.reach(otherID, otherNode[4], nodeIn[4])
	for _, f := range families {
		s.update(bpf.MapIpcache, bpf.NewAddrKey(distantPod[f]), bpf.IpcacheEntry{Identity: identityDistant, Node: otherID})
		s.update(bpf.MapIpcache, bpf.NewAddrKey(otherNode[f]), bpf.IpcacheEntry{Identity: 6, Node: otherID})
	}
	s.update(bpf.MapDatapath, uint32(0), bpf.DatapathState{Protocol: bpf.Protocol(bpf.ProtocolHighest)})
	s.update(bpf.MapOverlay, uint32(0), bpf.Overlay{Ifindex: ifVXLAN, Way: ifHost})
	s.update(bpf.MapEncap, uint32(0), bpf.Encap{Mtu: tunnelMTU, Mac: hostMAC})
	s.host.Do(func() { check(t, s.wireTunnel()) })
	s.distant.Do(func() { check(t, wireFarTunnel()) })
	return s
}

// wireTunnel creates the tunnel device with its program, and routes into it.
func (s *surroundings) wireTunnel() error {
	handle, err := tc.Open()
	if err != nil {
		return err
	}
	defer handle.Close()
	link := &netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{Name: tunnelDevice, Index: ifVXLAN, Group: guardedGroup, HardwareAddr: tunnelMAC[:]}, FlowBased: true, Port: tunnelPort}
	host, err := netlink.LinkByName("waggle_host")
	if err != nil {
		return err
	}
	steps := []func() error{
		func() error { return netlink.LinkAdd(link) },
		func() error { return handle.EnsureClsact(ifVXLAN, tc.Blocks{}) },
		func() error {
			return handle.ReplaceFilter(tc.Ingress(ifVXLAN), bpf.OverlayIngress, s.program(bpf.OverlayIngress).FD())
		},
		func() error { return setUp(tunnelDevice) },
		func() error {
			return os.WriteFile("/proc/sys/net/ipv4/conf/"+tunnelDevice+"/forwarding", []byte("1"), 0)
		},
		func() error {
			return os.WriteFile("/proc/sys/net/ipv4/conf/"+tunnelDevice+"/rp_filter", []byte("0"), 0)
		},
		func() error { return os.WriteFile("/proc/sys/net/ipv4/conf/all/rp_filter", []byte("0"), 0) },
		func() error { return netlink.LinkSetHardwareAddr(host, hostMAC[:]) },
	}
	for _, family := range families {
		steps = append(steps, func() error {
			return netlink.RouteReplace(&netlink.Route{LinkIndex: ifHost, Dst: hostNet(distantPod[family]), MTU: tunnelMTU})
		})
	}
	return each(steps...)
}

// wireFarTunnel creates the tunnel of the other node: a device like that of the node, and programs for its metadata and for the addresses of frames.
func wireFarTunnel() error {
	handle, err := tc.Open()
	if err != nil {
		return err
	}
	defer handle.Close()
	link := &netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{Name: "vxlan0", Index: ifVXLAN}, FlowBased: true, Port: tunnelPort}
	steps := []func() error{
		func() error { return netlink.LinkAdd(link) },
		func() error { return netlink.LinkSetARPOff(link) },
		func() error { return os.WriteFile("/proc/sys/net/ipv6/conf/vxlan0/addr_gen_mode", []byte("1"), 0) }, // it sends no packets by itself
		func() error { return handle.EnsureClsact(ifVXLAN, tc.Blocks{}) },
		func() error {
			// The frames have addresses of the sending node.
			return attach(handle, tc.Ingress(ifVXLAN), asm.Mov.Imm(asm.R2, unix.PACKET_HOST), asm.FnSkbChangeType.Call())
		},
		func() error {
			return attach(handle, tc.Egress(ifVXLAN), withTunnelKey(outerHeader{from: otherNode[4], to: nodeIn[4], vni: identityDistant}, zeroCsumTx)...)
		},
		func() error { return setUp("vxlan0") },
		func() error { return os.WriteFile("/proc/sys/net/ipv4/conf/all/rp_filter", []byte("0"), 0) },
	}
	for _, family := range families {
		steps = append(steps, func() error {
			return netlink.RouteAdd(&netlink.Route{LinkIndex: ifVXLAN, Dst: hostNet(podA.addr(family)), Src: distantPod[family].AsSlice(), MTU: tunnelMTU})
		})
	}
	return each(steps...)
}

// attach attaches a program that passes every packet.
func attach(handle *tc.Handle, at tc.AttachPoint, code ...asm.Instruction) error {
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: append(asm.Instructions(code), asm.Mov.Imm(asm.R0, actOK), asm.Return())})
	if err != nil {
		return err
	}
	defer program.Close()
	return handle.ReplaceFilter(at, "other_node", program.FD())
}

// Commands of linux/ethtool.h.
const (
	ethtoolTxChecksum = 0x17 // ETHTOOL_STXCSUM
	ethtoolTSO        = 0x1f // ETHTOOL_STSO
	ethtoolGRO        = 0x2c // ETHTOOL_SGRO
)

// withoutOffload turns a feature of a device of this namespace off.
func withoutOffload(device string, command uint32) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	value := struct{ command, data uint32 }{command: command} // struct ethtool_value
	var request struct {                                      // struct ifreq
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}
	copy(request.name[:], device)
	request.data = unsafe.Pointer(&value)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request))); errno != 0 {
		return errno
	}
	return nil
}

// throughDevice returns the numbers of packets that the tunnel device has received and sent.
func (s *surroundings) throughDevice() (received, sent uint64) {
	s.host.Do(func() {
		link, err := netlink.LinkByName(tunnelDevice)
		check(s.t, err)
		received, sent = link.Attrs().Statistics.RxPackets, link.Attrs().Statistics.TxPackets
	})
	return received, sent
}

// outerOf returns the first tunnel frame that arrives at the other node after send, from its outer IP header on.
func (s *surroundings) outerOf(t *testing.T, send func() error) []byte {
	t.Helper()
	return s.outerTo(t, 0, send)
}

// outerTo is outerOf for frames whose inner packet has a destination port: a late frame of an earlier connection may arrive before it. 0 means any frame.
func (s *surroundings) outerTo(t *testing.T, port uint16, send func() error) []byte {
	t.Helper()
	frame := make(chan []byte, 1)
	s.distant.Do(func() {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(htons(unix.ETH_P_ALL)))
		check(t, err)
		timeout := unix.NsecToTimeval(testTimeout.Nanoseconds())
		check(t, unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout))
		go func() {
			defer unix.Close(fd)
			defer close(frame)
			buf := make([]byte, 4096)
			for deadline := time.Now().Add(testTimeout); time.Now().Before(deadline); {
				var n int
				var from unix.Sockaddr
				if err := uninterrupted(func() (err error) { n, from, err = unix.Recvfrom(fd, buf, 0); return err }); err != nil {
					return
				}
				if link, ok := from.(*unix.SockaddrLinklayer); !ok || link.Pkttype == unix.PACKET_OUTGOING {
					continue // such as the last segment of a connection that was just closed
				}
				if n > innerAt && buf[outerIPAt] == 0x45 && buf[outerIPAt+9] == 17 && binary.BigEndian.Uint16(buf[outerUDPAt+2:]) == tunnelPort &&
					(port == 0 || port == destinationPort(buf[innerAt:n])) {
					frame <- slices.Clone(buf[outerIPAt:n])
					return
				}
			}
		}()
	})
	s.a.Do(func() { check(t, send()) })
	return <-frame
}

// destinationPort returns the destination port of an IP packet without options or extension headers; 0 if it is too short.
func destinationPort(packet []byte) uint16 {
	at := 40
	if packet[0]>>4 == 4 {
		at = 20
	}
	if len(packet) < at+4 {
		return 0
	}
	return binary.BigEndian.Uint16(packet[at+2:])
}

func htons(v uint16) uint16 { return v<<8 | v>>8 }

// ways are the possible divisions of the tunnel between programs and device.
var ways = map[string]uint32{"the device does all": 0, "programs send": bpf.EncapSends, "programs receive": bpf.EncapReceivesIPv4 | bpf.EncapReceivesIPv6, "programs do both": encapAll}

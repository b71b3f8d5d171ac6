package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/testnet"
	"github.com/waggle-net/waggle/test/nodekit"
)

const (
	tunnelPort = 8472
	healthPort = 4240
	farDevice  = "far"
	farMTU     = 1450 // leaves room for the outer headers

	vxlanSize, ethernetSize = 8, 14
	remoteNodeVNI           = 6
)

// farHosts simulates all far nodes in the namespace outside: it answers ICMP and health probes at each underlay address and inside the tunnel. It records the
// arrival of datagrams for pods.
type farHosts struct {
	socket *net.UDPConn // the tunnel
	device *os.File     // injects inner packets into the kernel and receives its replies
	server *http.Server

	mu   sync.Mutex // guards the fields below
	seen map[netip.Addr]time.Time
}

// startFarHosts starts farHosts in the namespace outside of a node of the cluster.
func startFarHosts(node *nodekit.Node) (_ *farHosts, err error) {
	h := &farHosts{seen: map[netip.Addr]time.Time{}}
	defer func() {
		if err != nil {
			h.Close()
		}
	}()
	var listener net.Listener
	if err := node.Outside(func() (err error) {
		if h.device, err = testnet.TUN(farDevice, 0); err != nil {
			return err
		}
		if err := farRoutes(); err != nil {
			return err
		}
		listen := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) (err error) {
			failed := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_PKTINFO, 1) })
			return errors.Join(failed, err)
		}}
		conn, err := listen.ListenPacket(context.Background(), "udp4", fmt.Sprintf(":%d", tunnelPort))
		if err != nil {
			return err
		}
		h.socket = conn.(*net.UDPConn)
		listener, err = net.Listen("tcp4", fmt.Sprintf(":%d", healthPort))
		return err
	}); err != nil {
		return nil, fmt.Errorf("start the far hosts: %w", err)
	}
	h.server = &http.Server{Handler: http.HandlerFunc(hello), ReadHeaderTimeout: time.Second}
	go func() { _ = h.server.Serve(listener) }()
	go h.receive()
	go h.reply()
	return h, nil
}

// farRoutes adds all far addresses to this namespace, and a route to the source addresses of real nodes inside the tunnel.
func farRoutes() error {
	if err := setUp(farDevice); err != nil {
		return err
	}
	device, err := netlink.LinkByName(farDevice)
	if err != nil {
		return err
	}
	loopback, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	for _, local := range []netip.Prefix{farUnderlay, farInner} {
		if err := netlink.RouteAdd(&netlink.Route{LinkIndex: loopback.Attrs().Index, Dst: network(local), Table: unix.RT_TABLE_LOCAL,
			Type: unix.RTN_LOCAL, Scope: netlink.SCOPE_HOST}); err != nil {
			return fmt.Errorf("make %s local: %w", local, err)
		}
	}
	return errors.Join(netlink.LinkSetMTU(device, farMTU),
		netlink.RouteAdd(&netlink.Route{LinkIndex: device.Attrs().Index, Dst: network(netip.MustParsePrefix("10.244.0.0/16")), Scope: netlink.SCOPE_LINK}))
}

func setUp(name string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(link)
}

func network(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// hello answers a health probe as an agent does.
func hello(w http.ResponseWriter, r *http.Request) {
	n, _ := strconv.Atoi(r.URL.Query().Get("bytes"))
	w.Header().Set("Connection", "close")
	_, _ = w.Write([]byte(strings.Repeat("-", max(0, min(n, 16<<10)))))
}

// Close stops all servers and closes the sockets.
func (h *farHosts) Close() {
	if h.server != nil {
		_ = h.server.Close()
	}
	if h.socket != nil {
		_ = h.socket.Close()
	}
	if h.device != nil {
		_ = h.device.Close()
	}
}

// receive decapsulates frames of the tunnel until the socket is closed. A datagram counts as received by its pod at that point.
func (h *farHosts) receive() {
	buffer := make([]byte, 1<<16)
	for {
		n, err := h.socket.Read(buffer)
		if err != nil {
			return
		}
		if n < vxlanSize+ethernetSize+20 {
			continue
		}
		inner := buffer[vxlanSize+ethernetSize : n] // sent by a device of this machine, so its lengths are valid
		switch {
		case inner[0]>>4 != 4:
		case inner[9] == unix.IPPROTO_UDP:
			h.note(netip.AddrFrom4([4]byte(inner[16:20])))
		case inner[9] == unix.IPPROTO_TCP && inner[0] == 0x45 && len(inner) >= 40:
			addChecksum(inner)
			_, _ = h.device.Write(inner)
		default:
			_, _ = h.device.Write(inner)
		}
	}
}

// addChecksum computes the checksum of a TCP segment over IPv4 without options. The sender's kernel leaves it to the device, and veth devices do not compute
// it.
func addChecksum(packet []byte) {
	segment := packet[20:binary.BigEndian.Uint16(packet[2:])]
	segment[16], segment[17] = 0, 0
	pseudo := append([]byte(nil), packet[12:20]...)
	pseudo = append(pseudo, 0, unix.IPPROTO_TCP)
	pseudo = binary.BigEndian.AppendUint16(pseudo, uint16(len(segment)))
	binary.BigEndian.PutUint16(segment[16:], nodekit.Checksum(append(pseudo, segment...)))
}

func (h *farHosts) note(pod netip.Addr) {
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, again := h.seen[pod]; !again {
		h.seen[pod] = now
	}
}

// reached returns the arrival time of the first datagram for a pod, or the zero time.
func (h *farHosts) reached(pod netip.Addr) time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.seen[pod]
}

// reply encapsulates the kernel's packets on the device and sends them from the node that has the source address, until the device is closed.
func (h *farHosts) reply() {
	frame := make([]byte, 1<<16)
	frame[0] = 0x08
	binary.BigEndian.PutUint32(frame[4:], remoteNodeVNI<<8)
	copy(frame[vxlanSize:], []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0})
	for {
		inner := frame[vxlanSize+ethernetSize:]
		n, err := h.device.Read(inner)
		if err != nil {
			return
		}
		if n < 20 || inner[0]>>4 != 4 {
			continue
		}
		from, to := netip.AddrFrom4([4]byte(inner[12:16])), [4]byte(inner[16:20])
		if !farInner.Contains(from) {
			continue
		}
		node := nodekit.UplinkIPv4.Addr().As4()
		node[3] += to[2] - 1 // node i has the pod range 10.244.i.0/24
		info := unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: farNodeOf(from).addr(0).As4()})
		_, _, _ = h.socket.WriteMsgUDPAddrPort(frame[:vxlanSize+ethernetSize+n], info, netip.AddrPortFrom(netip.AddrFrom4(node), tunnelPort))
	}
}

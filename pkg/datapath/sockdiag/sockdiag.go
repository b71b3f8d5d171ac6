// Package sockdiag lists the sockets that BPF programs have connected to backends, and finds and closes connected sockets.
package sockdiag

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"runtime"

	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Numbers of linux/inet_diag.h and linux/sock_diag.h that package unix lacks.
const (
	sockDiagByFamily = 20
	sockDestroy      = 21

	idSize      = 48 // struct inet_diag_sockid
	cookieAt    = 40 // inside inet_diag_sockid
	messageSize = 72 // struct inet_diag_msg
	idAt        = 4  // in struct inet_diag_msg
)

// TCP states in which a socket can still send to its peer (tcp_states.h); a connected UDP socket is established.
const connected = 1<<unix.BPF_TCP_ESTABLISHED | 1<<unix.BPF_TCP_SYN_SENT | 1<<unix.BPF_TCP_FIN_WAIT1 | 1<<unix.BPF_TCP_FIN_WAIT2 |
	1<<unix.BPF_TCP_CLOSE_WAIT

// errNoDestroy is the error of a kernel without CONFIG_INET_DIAG_DESTROY.
var errNoDestroy = errors.New("the kernel cannot close sockets of other processes: it needs CONFIG_INET_DIAG_DESTROY")

// errNoDiag is the error of a kernel without diagnosis of the protocol. The kernel reports this as ENOENT, which means no missing file.
var errNoDiag = errors.New("the kernel cannot list sockets of this protocol: it needs CONFIG_INET_TCP_DIAG for TCP (6), CONFIG_INET_UDP_DIAG for UDP (17)")

// Socket is a connected socket.
type Socket struct {
	Protocol    uint8
	Local, Peer netip.AddrPort // IPv4 addresses of IPv6 sockets are plain IPv4
	Cookie      uint64

	family uint8
	id     [idSize]byte // as the kernel reports it
}

// Conn queries the sockets of one network namespace.
type Conn struct{ sockets map[int]*nl.SocketHandle }

// Open opens a connection to the namespace of the thread.
func Open() (*Conn, error) {
	socket, err := nl.GetNetlinkSocketAt(netns.None(), netns.None(), unix.NETLINK_INET_DIAG)
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket for socket diagnosis: %w", err)
	}
	return &Conn{map[int]*nl.SocketHandle{unix.NETLINK_INET_DIAG: {Socket: socket}}}, nil
}

// OpenAt opens a connection to a namespace; entering another namespace needs CAP_SYS_ADMIN.
func OpenAt(ns netns.NsHandle) (c *Conn, err error) {
	err = inside(ns, func() (err error) {
		c, err = Open()
		return err
	})
	return c, err
}

// inside calls do in a network namespace; [netns.None] is the namespace of the thread.
func inside(ns netns.NsHandle, do func() error) error {
	if ns == netns.None() {
		return do()
	}
	runtime.LockOSThread()
	own, err := netns.Get()
	if err == nil {
		defer own.Close()
		err = netns.Set(ns)
	}
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("enter the network namespace: %w", err)
	}
	err = do()
	if back := netns.Set(own); back != nil { // the thread exits with the goroutine
		return errors.Join(err, fmt.Errorf("return from a network namespace: %w", back))
	}
	runtime.UnlockOSThread()
	return err
}

// Close closes the connection.
func (c *Conn) Close() { c.sockets[unix.NETLINK_INET_DIAG].Close() }

// Each calls do for each connected socket of a protocol.
func (c *Conn) Each(protocol uint8, do func(Socket)) error {
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		req := c.request(sockDiagByFamily, unix.NLM_F_DUMP)
		req.AddData(question(family, protocol, connected, [idSize]byte{}))
		var broken error
		err := req.ExecuteIter(unix.NETLINK_INET_DIAG, sockDiagByFamily, func(message []byte) bool {
			var s Socket
			if s, broken = read(protocol, message); broken == nil {
				do(s)
			}
			return broken == nil
		})
		if errors.Is(err, unix.ENOENT) {
			err = errNoDiag
		}
		if err = errors.Join(err, broken); err != nil {
			return fmt.Errorf("list the sockets of protocol %d: %w", protocol, err)
		}
	}
	return nil
}

// Destroy closes a socket; its process gets ECONNABORTED. It reports whether the socket still existed.
func (c *Conn) Destroy(s *Socket) (bool, error) {
	req := c.request(sockDestroy, unix.NLM_F_ACK)
	req.AddData(question(s.family, s.Protocol, ^uint32(0), s.id))
	_, err := req.Execute(unix.NETLINK_INET_DIAG, 0)
	switch {
	case errors.Is(err, unix.ENOENT):
		return false, nil
	case errors.Is(err, unix.EOPNOTSUPP):
		err = errNoDestroy
	}
	if err != nil {
		return false, fmt.Errorf("close the socket from %s to %s: %w", s.Local, s.Peer, err)
	}
	return true, nil
}

func (c *Conn) request(kind, flags int) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(kind, flags)
	req.Sockets = c.sockets
	return req
}

// head is the header of a request.
type head []byte

// Len implements nl.NetlinkRequestData.
func (h head) Len() int { return len(h) }

// Serialize implements nl.NetlinkRequestData.
func (h head) Serialize() []byte { return h }

// question is struct inet_diag_req_v2.
func question(family, protocol uint8, states uint32, id [idSize]byte) head {
	return append(binary.NativeEndian.AppendUint32([]byte{family, protocol, 0, 0}, states), id[:]...)
}

// read parses a struct inet_diag_msg.
func read(protocol uint8, message []byte) (s Socket, err error) {
	if len(message) < messageSize {
		return s, fmt.Errorf("read a socket: %d bytes, want at least %d", len(message), messageSize)
	}
	s = Socket{Protocol: protocol, family: message[0], id: [idSize]byte(message[idAt:])}
	addr := func(at int) netip.Addr {
		if s.family == unix.AF_INET {
			return netip.AddrFrom4([4]byte(s.id[at:]))
		}
		return netip.AddrFrom16([16]byte(s.id[at:])).Unmap()
	}
	s.Local = netip.AddrPortFrom(addr(4), binary.BigEndian.Uint16(s.id[0:]))
	s.Peer = netip.AddrPortFrom(addr(20), binary.BigEndian.Uint16(s.id[2:]))
	low, high := binary.NativeEndian.Uint32(s.id[cookieAt:]), binary.NativeEndian.Uint32(s.id[cookieAt+4:])
	s.Cookie = uint64(high)<<32 | uint64(low)
	return s, nil
}

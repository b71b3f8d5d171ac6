package icmpecho

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/mac"
)

// Hop is a neighbour on a link of this node.
type Hop struct {
	Link int      // index of the device
	MAC  mac.Addr // of the neighbour; zero on a link without MAC addresses
}

const timeToLive = 64

// sendTo sends an ICMP message between two addresses by way of a neighbour. The packet passes neither routes nor netfilter.
func (p *Pinger) sendTo(h Hop, from, to netip.Addr, message []byte) error {
	socket, err := p.frameSocket()
	if err != nil {
		return CannotOpen(err)
	}
	_ = socket.SetWriteDeadline(time.Now().Add(writeTimeout))
	raw, err := socket.SyscallConn()
	if err != nil {
		return err
	}
	packet, protocol := packet4(from, to, message), uint16(unix.ETH_P_IP)
	if to.Is6() {
		packet, protocol = packet6(from, to, message), unix.ETH_P_IPV6
	}
	at := &unix.SockaddrLinklayer{Protocol: networkOrder(protocol), Ifindex: h.Link}
	if !h.MAC.IsZero() {
		at.Halen = uint8(copy(at.Addr[:], h.MAC[:]))
	}
	failed := raw.Write(func(fd uintptr) (done bool) {
		err = unix.Sendto(int(fd), packet, 0, at)
		return !errors.Is(err, unix.EAGAIN)
	})
	return errors.Join(failed, err)
}

// frameSocket returns a socket that sends packets to neighbours and receives none. The calling goroutine opens it in its own network namespace.
func (p *Pinger) frameSocket() (*os.File, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.frames == nil {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		p.frames = os.NewFile(uintptr(fd), "packet socket")
	}
	return p.frames, nil
}

// networkOrder converts n to network byte order.
func networkOrder(n uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, n))
}

// packet4 prepends an IPv4 header to an ICMP message.
func packet4(from, to netip.Addr, message []byte) []byte {
	const dontFragment = 0x4000
	p := make([]byte, ipv4Header, ipv4Header+len(message))
	p[0] = 4<<4 | ipv4Header/4
	binary.BigEndian.PutUint16(p[2:], uint16(ipv4Header+len(message)))
	binary.BigEndian.PutUint16(p[6:], dontFragment)
	p[8], p[9] = timeToLive, unix.IPPROTO_ICMP
	copy(p[12:], from.AsSlice())
	copy(p[16:], to.AsSlice())
	binary.BigEndian.PutUint16(p[10:], checksum(p))
	return append(p, message...)
}

// packet6 prepends an IPv6 header to an ICMPv6 message and computes its checksum, which covers the addresses (RFC 4443, 2.3).
func packet6(from, to netip.Addr, message []byte) []byte {
	p := make([]byte, ipv6Header, ipv6Header+len(message))
	p[0] = 6 << 4
	binary.BigEndian.PutUint16(p[4:], uint16(len(message)))
	p[6], p[7] = unix.IPPROTO_ICMPV6, timeToLive
	copy(p[8:], from.AsSlice())
	copy(p[24:], to.AsSlice())

	pseudo := append(from.AsSlice(), to.AsSlice()...) // RFC 8200, 8.1
	pseudo = binary.BigEndian.AppendUint32(pseudo, uint32(len(message)))
	pseudo = append(pseudo, 0, 0, 0, unix.IPPROTO_ICMPV6)
	p = append(p, message...)
	binary.BigEndian.PutUint16(p[ipv6Header+2:], checksum(append(pseudo, message...)))
	return p
}

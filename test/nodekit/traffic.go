package nodekit

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// NetNS is an end of traffic: a pod, the node (a [NetNS] from [Node.NetNS]) or the host outside.
type NetNS interface {
	Do(f func() error) error
}

// Bind calls f, which binds an address at a place, and retries while the address is in use: a recently closed socket stays open in a child process that this
// process is starting, until execve(2) has closed inherited descriptors.
func Bind(at NetNS, f func() error) error {
	return at.Do(func() error {
		for deadline := time.Now().Add(answerTimeout); ; time.Sleep(time.Millisecond) {
			if err := f(); !errors.Is(err, unix.EADDRINUSE) || time.Now().After(deadline) {
				return err
			}
		}
	})
}

// A lost packet is not sent again, so a longer timeout does not help; a packet that a busy machine delays needs a long timeout. Go reports a timeout even if
// the answer arrived in time and no goroutine has read it.
const (
	answerTimeout = 15 * time.Second // for a required answer
	silence       = 2 * time.Second  // for an optional or forbidden answer
)

// Ping sends one ICMP echo request with size bytes of data from a place and returns an error unless a reply arrives.
func Ping(from NetNS, to netip.Addr, size int) error {
	return pingWithin(answerTimeout, from, to, size)
}

// PingBriefly is Ping with a short timeout: for retries, and for requests that must not be answered.
func PingBriefly(from NetNS, to netip.Addr, size int) error {
	return pingWithin(silence, from, to, size)
}

func pingWithin(limit time.Duration, from NetNS, to netip.Addr, size int) error {
	return from.Do(func() error {
		if err := ping(limit, to, size); err != nil {
			return fmt.Errorf("ping %s with %d bytes: %w", to, size, err)
		}
		return nil
	})
}

// pings counts the echo requests of this process. A raw socket receives the replies to all pings of its network namespace: the sequence number distinguishes
// concurrent pings.
var pings atomic.Uint32

func ping(limit time.Duration, to netip.Addr, size int) error {
	request, reply, network := byte(8), byte(0), "ip4:icmp"
	if to.Is6() {
		request, reply, network = 128, 129, "ip6:ipv6-icmp"
	}
	conn, err := net.DialIP(network, nil, &net.IPAddr{IP: to.AsSlice()})
	if err != nil {
		return err
	}
	defer conn.Close()
	id, seq := uint16(os.Getpid()), uint16(pings.Add(1))
	packet := make([]byte, 8+size)
	packet[0] = request
	binary.BigEndian.PutUint16(packet[4:], id)
	binary.BigEndian.PutUint16(packet[6:], seq)
	if !to.Is6() { // the kernel fills in the checksum of ICMPv6
		binary.BigEndian.PutUint16(packet[2:], Checksum(packet))
	}
	if _, err := conn.Write(packet); err != nil {
		return err
	}
	if err := conn.SetReadDeadline(time.Now().Add(limit)); err != nil {
		return err
	}
	buffer := make([]byte, len(packet)+128)
	for {
		n, _, err := conn.ReadFrom(buffer) // Read would include the IPv4 header
		if err != nil {
			return err
		}
		if n >= 8 && buffer[0] == reply && binary.BigEndian.Uint16(buffer[4:]) == id && binary.BigEndian.Uint16(buffer[6:]) == seq {
			if n != len(packet) {
				return fmt.Errorf("the reply has %d bytes, want %d", n, len(packet))
			}
			return nil
		}
	}
}

// Checksum is the Internet checksum (RFC 1071).
func Checksum(b []byte) uint16 {
	var sum uint32
	for ; len(b) >= 2; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		sum += uint32(b[0]) << 8
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// TCP opens a listener at to, connects to addr from another place, sends size bytes and compares the echo.
func TCP(from, to NetNS, addr netip.Addr, size int) error {
	return TCPThrough(from, netip.AddrPort{}, to, netip.AddrPortFrom(addr, 0), size)
}

// TCPFrom is TCP with a given source address.
func TCPFrom(from NetNS, source netip.Addr, to NetNS, addr netip.Addr, size int) error {
	return tcp(from, &net.TCPAddr{IP: source.AsSlice()}, netip.AddrPort{}, to, netip.AddrPortFrom(addr, 0), size)
}

// TCPThrough is TCP with the address of a service in front of the listener; an invalid address means no service.
func TCPThrough(from NetNS, service netip.AddrPort, to NetNS, at netip.AddrPort, size int) error {
	return tcp(from, nil, service, to, at, size)
}

func tcp(from NetNS, source net.Addr, service netip.AddrPort, to NetNS, at netip.AddrPort, size int) error {
	var listener net.Listener
	if err := Bind(to, func() (err error) {
		listener, err = net.Listen("tcp", at.String())
		return err
	}); err != nil {
		return err
	}
	defer listener.Close()
	go func() {
		if conn, err := listener.Accept(); err == nil {
			defer conn.Close()
			_, _ = io.Copy(conn, conn)
		}
	}()
	var conn net.Conn
	if err := from.Do(func() (err error) {
		dialer := net.Dialer{Timeout: answerTimeout, LocalAddr: source}
		conn, err = dialer.Dial("tcp", through(service, listener.Addr()))
		return err
	}); err != nil {
		return err
	}
	defer conn.Close()
	return echo(conn, size)
}

// through returns the destination address of a client.
func through(service netip.AddrPort, server net.Addr) string {
	if service.IsValid() {
		return service.String()
	}
	return server.String()
}

// UDP sends one datagram to a server at to and compares the echo.
func UDP(from, to NetNS, addr netip.Addr, size int) error {
	return UDPThrough(from, netip.AddrPort{}, to, netip.AddrPortFrom(addr, 0), size)
}

// UDPThrough is UDP with the address of a service in front of the server; an invalid address means no service.
func UDPThrough(from NetNS, service netip.AddrPort, to NetNS, at netip.AddrPort, size int) error {
	var server net.PacketConn
	if err := Bind(to, func() (err error) {
		server, err = net.ListenPacket("udp", at.String())
		return err
	}); err != nil {
		return err
	}
	defer server.Close()
	go func() {
		buffer := make([]byte, 65536)
		if n, peer, err := server.ReadFrom(buffer); err == nil {
			_, _ = server.WriteTo(buffer[:n], peer)
		}
	}()
	var conn net.Conn
	if err := from.Do(func() (err error) {
		conn, err = net.Dial("udp", through(service, server.LocalAddr()))
		return err
	}); err != nil {
		return err
	}
	defer conn.Close()
	return echo(conn, size)
}

func echo(conn net.Conn, size int) error {
	sent := make([]byte, size)
	for i := range sent {
		sent[i] = byte(i)
	}
	if err := conn.SetDeadline(time.Now().Add(answerTimeout)); err != nil {
		return err
	}
	written := make(chan error, 1)
	go func() { _, err := conn.Write(sent); written <- err }()
	received := make([]byte, size)
	_, err := io.ReadFull(conn, received)
	if err = errors.Join(err, <-written); err != nil {
		return fmt.Errorf("echo %d bytes over %s to %s: %w", size, conn.LocalAddr().Network(), conn.RemoteAddr(), err)
	}
	if string(sent) != string(received) {
		return errors.New("the echo differs from the request")
	}
	return nil
}

// Spoof sends one UDP datagram with a forged source address.
func Spoof(from NetNS, src, dst netip.Addr) error {
	return from.Do(func() error {
		packet, family := udpPacket(src, dst)
		level, option := unix.IPPROTO_IP, unix.IP_HDRINCL
		if family == unix.AF_INET6 {
			level, option = unix.IPPROTO_IPV6, unix.IPV6_HDRINCL
		}
		fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		if err != nil {
			return fmt.Errorf("open a raw socket: %w", err)
		}
		defer unix.Close(fd)
		if err := unix.SetsockoptInt(fd, level, option, 1); err != nil {
			return fmt.Errorf("ask to write headers: %w", err)
		}
		var to unix.Sockaddr = &unix.SockaddrInet4{Addr: to4(dst)}
		if family == unix.AF_INET6 {
			to = &unix.SockaddrInet6{Addr: dst.As16()}
		}
		return unix.Sendto(fd, packet, 0, to)
	})
}

func to4(a netip.Addr) (b [4]byte) {
	if a.Is4() {
		b = a.As4()
	}
	return b
}

// udpPacket builds an IP packet with an empty UDP datagram from port 1111 to port 2222.
func udpPacket(src, dst netip.Addr) (packet []byte, family int) {
	udp := []byte{0x04, 0x57, 0x08, 0xae, 0, 8, 0, 0}
	if dst.Is6() {
		header := make([]byte, 8, 48)
		header[0], header[6], header[7] = 0x60, unix.IPPROTO_UDP, 64
		binary.BigEndian.PutUint16(header[4:], uint16(len(udp)))
		header = append(append(header, src.AsSlice()...), dst.AsSlice()...)
		// IPv6 requires a checksum for UDP (RFC 8200, section 8.1), which covers a pseudo-header.
		pseudo := append(append(src.AsSlice(), dst.AsSlice()...), 0, 0, 0, byte(len(udp)), 0, 0, 0, unix.IPPROTO_UDP)
		binary.BigEndian.PutUint16(udp[6:], Checksum(append(pseudo, udp...)))
		return append(header, udp...), unix.AF_INET6
	}
	header := make([]byte, 12, 28)
	header[0], header[8], header[9] = 0x45, 64, unix.IPPROTO_UDP
	binary.BigEndian.PutUint16(header[2:], uint16(20+len(udp)))
	header = append(append(header, src.AsSlice()...), dst.AsSlice()...)
	binary.BigEndian.PutUint16(header[10:], Checksum(header))
	return append(header, udp...), unix.AF_INET
}

// ClosedPort sends a datagram to a closed port and returns an error unless the ICMP error arrives.
func ClosedPort(from NetNS, to netip.Addr) error {
	return from.Do(func() error {
		conn, err := net.Dial("udp", netip.AddrPortFrom(to, 9).String())
		if err != nil {
			return err
		}
		defer conn.Close()
		if _, err := conn.Write([]byte("?")); err != nil {
			return err
		}
		_ = conn.SetReadDeadline(time.Now().Add(answerTimeout))
		if _, err = conn.Read(make([]byte, 1)); errors.Is(err, unix.ECONNREFUSED) {
			return nil
		}
		return fmt.Errorf("send to a closed port: got %v, want connection refused", err)
	})
}

// Listen opens a UDP port at a place and sends the source address of each datagram to the channel, until the test ends.
func Listen(t testing.TB, at NetNS, addr netip.Addr, port uint16) <-chan netip.Addr {
	t.Helper()
	var conn *net.UDPConn
	if err := at.Do(func() (err error) {
		conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, port)))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	from := make(chan netip.Addr, 16)
	go func() {
		defer close(from)
		for {
			_, peer, err := conn.ReadFromUDPAddrPort(make([]byte, 2048))
			if err != nil {
				return
			}
			from <- peer.Addr().Unmap()
		}
	}()
	return from
}

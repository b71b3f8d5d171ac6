package node_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/test/nodekit"
)

// attempt is one try of a connection without a thread of its own, because a matrix has hundreds of tries.
type attempt struct {
	flow
	addr     netip.Addr
	fd       int    // non-blocking; -1 while closed
	id       uint16 // of the echo; 0 means a unique one
	answered bool
}

// matrixTimeout is the timeout of replies in a matrix; a later reply counts as lost, and the connection is tried again.
const matrixTimeout = 250 * time.Millisecond

// echoIDs distinguishes the pings of one test program.
var echoIDs atomic.Uint32

// openAll opens the sockets of attempts from one place and sends the first packet of each. It must run inside that place.
func openAll(attempts []*attempt) error {
	for _, a := range attempts {
		if err := a.open(); err != nil {
			return fmt.Errorf("%s: %w", a.flow, err)
		}
	}
	return nil
}

func (a *attempt) open() (err error) {
	domain, kind, protocol := unix.AF_INET, unix.SOCK_STREAM, 0
	if a.ipv6 {
		domain = unix.AF_INET6
	}
	switch a.protocol {
	case "udp":
		kind = unix.SOCK_DGRAM
	case "icmp":
		kind, protocol = unix.SOCK_RAW, unix.IPPROTO_ICMP
		if a.ipv6 {
			protocol = unix.IPPROTO_ICMPV6
		}
	}
	if a.fd, err = unix.Socket(domain, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, protocol); err != nil {
		a.fd = -1
		return err
	}
	if err := unix.Connect(a.fd, a.sockaddr()); err != nil && !errors.Is(err, unix.EINPROGRESS) {
		return fmt.Errorf("connect: %w", err)
	}
	switch a.protocol {
	case "udp":
		_, err = unix.Write(a.fd, []byte("?"))
	case "icmp":
		_, err = unix.Write(a.fd, a.echo())
	}
	return err
}

func (a *attempt) sockaddr() unix.Sockaddr {
	if a.ipv6 {
		return &unix.SockaddrInet6{Port: int(a.port), Addr: a.addr.As16()}
	}
	return &unix.SockaddrInet4{Port: int(a.port), Addr: a.addr.As4()}
}

// echo returns an echo request.
func (a *attempt) echo() []byte {
	if a.id == 0 {
		a.id = uint16(echoIDs.Add(1))
	}
	packet := make([]byte, 16)
	if packet[0] = 8; a.ipv6 {
		packet[0] = 128
	}
	binary.BigEndian.PutUint16(packet[4:], a.id)
	if !a.ipv6 { // the kernel fills in the checksum of ICMPv6
		binary.BigEndian.PutUint16(packet[2:], nodekit.Checksum(packet))
	}
	return packet
}

// await waits until all attempts are done or the timeout has passed. It polls once after the deadline, and so reads answers that arrived in time while the
// process had no CPU.
func await(attempts []*attempt, timeout time.Duration) error {
	open := slices.Clone(attempts)
	deadline := time.Now().Add(timeout)
	for last := false; len(open) > 0 && !last; {
		last = !time.Now().Before(deadline)
		fds := make([]unix.PollFd, len(open))
		for i, a := range open {
			fds[i] = unix.PollFd{Fd: int32(a.fd), Events: unix.POLLIN}
			if a.protocol == "tcp" {
				fds[i].Events = unix.POLLOUT
			}
		}
		if _, err := unix.Poll(fds, pollFor(time.Until(deadline))); err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for answers: %w", err)
		}
		var rest []*attempt
		for i, a := range open {
			if fds[i].Revents == 0 || !a.done() {
				rest = append(rest, a)
			}
		}
		open = rest
	}
	return nil
}

// pollFor returns the timeout of poll(2) for the remaining time. It is never negative, which would mean infinity, because a deadline may pass at any time.
func pollFor(left time.Duration) (milliseconds int) { return max(0, int(left.Milliseconds())+1) }

// done reads the result of an attempt and reports whether it is final.
func (a *attempt) done() bool {
	if a.protocol == "tcp" {
		code, err := unix.GetsockoptInt(a.fd, unix.SOL_SOCKET, unix.SO_ERROR)
		// No process listens on the port, so a reset is the reply of the responder.
		a.answered = err == nil && (code == 0 || code == int(unix.ECONNREFUSED))
		return true
	}
	buffer := make([]byte, 256)
	for {
		n, err := unix.Read(a.fd, buffer)
		if errors.Is(err, unix.EAGAIN) {
			return false
		}
		if err != nil {
			return true // an ICMP error
		}
		if a.protocol == "udp" || a.isReply(buffer[:n]) {
			a.answered = true
			return true
		}
	}
}

// isReply reports whether a packet of a raw socket is the reply to this echo request.
func (a *attempt) isReply(packet []byte) bool {
	reply := byte(129)
	if !a.ipv6 {
		reply = 0
		if len(packet) < 20 || len(packet) < int(packet[0]&15)*4 {
			return false
		}
		packet = packet[int(packet[0]&15)*4:]
	}
	return len(packet) >= 8 && packet[0] == reply && binary.BigEndian.Uint16(packet[4:]) == a.id
}

func closeAll(attempts []*attempt) {
	for _, a := range attempts {
		if a.fd >= 0 {
			_ = unix.Close(a.fd) // nothing is lost
		}
	}
}

// A deadline that has passed while the thread had no CPU does not block a matrix for ever.
func TestAwait_ExpiredDeadline(t *testing.T) {
	t.Parallel()
	for _, left := range []time.Duration{-time.Minute, -2 * time.Millisecond, -1, 0} {
		if ms := pollFor(left); ms < 0 || ms > 1 {
			t.Errorf("%v before the deadline poll(2) is told %d ms", left, ms)
		}
	}
	if ms := pollFor(20 * time.Millisecond); ms != 21 {
		t.Errorf("20 ms before the deadline poll(2) is told %d ms", ms)
	}
}

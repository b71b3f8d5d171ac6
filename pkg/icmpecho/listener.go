package icmpecho

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// maxHeard limits the sources that a [Listener] remembers.
	maxHeard = 16384
	// heardFor is how long it remembers one when there are too many.
	heardFor = time.Minute
	// sweepInterval is the minimum time between two searches for those that can be forgotten: a hostile host must not have all searched for each packet.
	sweepInterval = time.Second
)

// Listener remembers which hosts sent this node an echo request. Any host can: a source says that packets from there arrive, and nothing else.
type Listener struct {
	mu      sync.Mutex // guards what follows
	conns   []*net.IPConn
	heard   map[netip.Addr]time.Time
	swept   time.Time // when sources were last removed because there were too many
	readers sync.WaitGroup
}

// Open opens a raw socket of each family that the kernel has. A node without the right to open one hears nobody.
func (l *Listener) Open() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.heard = map[netip.Addr]time.Time{}
	for _, network := range []string{"ip4:icmp", "ip6:ipv6-icmp"} {
		control := func(_, _ string, raw syscall.RawConn) (err error) {
			if failed := raw.Control(func(fd uintptr) { err = requestsOnly(int(fd), network != "ip4:icmp") }); failed != nil {
				return failed
			}
			return err
		}
		if conn, err := (&net.ListenConfig{Control: control}).ListenPacket(context.Background(), network, ""); err == nil {
			l.conns = append(l.conns, conn.(*net.IPConn))
			l.readers.Go(func() { l.read(conn.(*net.IPConn)) })
		}
	}
}

// Close closes the sockets and waits for their readers.
func (l *Listener) Close() {
	l.mu.Lock()
	for _, conn := range l.conns {
		_ = conn.Close()
	}
	l.conns = nil
	l.mu.Unlock()
	l.readers.Wait()
}

// Heard returns when a host last sent an echo request; zero when it has not.
func (l *Listener) Heard(from netip.Addr) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.heard[from]
}

// requestsOnly makes the kernel drop all other messages before they are copied.
func requestsOnly(fd int, ipv6 bool) error {
	if !ipv6 {
		return unix.SetsockoptInt(fd, unix.SOL_RAW, icmpFilter, ^(1 << echoRequest4))
	}
	var types unix.ICMPv6Filter
	for i := range types.Data {
		types.Data[i] = ^uint32(0)
	}
	types.Data[echoRequest6/32] = ^uint32(1 << (echoRequest6 % 32))
	return unix.SetsockoptICMPv6Filter(fd, unix.IPPROTO_ICMPV6, unix.ICMPV6_FILTER, &types)
}

// read notes sources until the socket fails or is closed. The message itself does not matter.
func (l *Listener) read(conn *net.IPConn) {
	defer conn.Close()
	var buffer [64]byte
	for {
		_, from, err := conn.ReadFromIP(buffer[:])
		if err != nil {
			return
		}
		if addr, ok := netip.AddrFromSlice(from.IP); ok {
			l.note(addr.Unmap(), time.Now())
		}
	}
}

func (l *Listener) note(from netip.Addr, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, known := l.heard[from]; !known && len(l.heard) >= maxHeard {
		if at.Sub(l.swept) < sweepInterval {
			return
		}
		l.swept = at
		for addr, last := range l.heard {
			if at.Sub(last) > heardFor {
				delete(l.heard, addr)
			}
		}
		if len(l.heard) >= maxHeard {
			return
		}
	}
	l.heard[from] = at
}

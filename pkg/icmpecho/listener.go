package icmpecho

import (
	"context"
	"io"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// maxSources limits the sources that a [Listener] remembers.
	maxSources = 16384
	// sourceTTL is how long the listener remembers a source when the list is full.
	sourceTTL = time.Minute
	// sweepInterval is the minimum time between two searches for expired sources: a hostile host must not cause a search for each packet.
	sweepInterval = time.Second
	// A reader takes at most readBatch messages in readInterval, so that a flood of requests uses little CPU time. The kernel drops messages that do not fit into
	// the buffer of the socket.
	readBatch    = 256
	readInterval = 100 * time.Millisecond
)

// Listener records which hosts sent this node an echo request. Any host can send one: a record proves only that packets from the source arrive.
type Listener struct {
	mu      sync.Mutex // guards the fields below
	conns   []*net.IPConn
	heard   map[netip.Addr]time.Time
	swept   time.Time // time of the last removal of expired sources from a full list
	readers sync.WaitGroup
}

// Open opens a raw socket of each family that the kernel supports. Without the capability to open one, the listener records no sources.
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

// Heard returns the time of the last echo request from a host; zero without one.
func (l *Listener) Heard(from netip.Addr) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.heard[from]
}

// requestsOnly makes the kernel drop all other messages before it copies them.
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

// reader is a socket.
type reader interface {
	ReadFromIP(buffer []byte) (int, *net.IPAddr, error)
	io.Closer
}

// read records sources until the socket fails or is closed. It ignores the content of messages.
func (l *Listener) read(conn reader) {
	defer conn.Close()
	var buffer [64]byte
	for {
		began := time.Now()
		for range readBatch {
			_, from, err := conn.ReadFromIP(buffer[:])
			if err != nil {
				return
			}
			if addr, ok := netip.AddrFromSlice(from.IP); ok {
				l.note(addr.Unmap(), time.Now())
			}
		}
		time.Sleep(time.Until(began.Add(readInterval)))
	}
}

func (l *Listener) note(from netip.Addr, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, known := l.heard[from]; !known && len(l.heard) >= maxSources {
		if at.Sub(l.swept) < sweepInterval {
			return
		}
		l.swept = at
		for addr, last := range l.heard {
			if at.Sub(last) > sourceTTL {
				delete(l.heard, addr)
			}
		}
		if len(l.heard) >= maxSources {
			return
		}
	}
	l.heard[from] = at
}

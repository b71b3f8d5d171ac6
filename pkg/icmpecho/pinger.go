package icmpecho

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ICMP messages of the two families.
const (
	echoRequest4, echoReply4 = 8, 0
	echoRequest6, echoReply6 = 128, 129

	echoHeader = 8 // type, code, checksum, identifier, sequence number
	echoNonce  = 8 // data of our requests, which the reply repeats

	ipv4Header, ipv6Header = 20, 40 // without options or extension headers

	// MaxSize limits the size of a request.
	MaxSize = 65535
	// writeTimeout bounds the time that the kernel takes to accept a request.
	writeTimeout = 5 * time.Second
)

// Request is one echo request.
type Request struct {
	To netip.Addr
	// Size is the length of the packet in bytes with its IP header, up to [MaxSize]; 0 is the smallest.
	Size int
	// Device is the index of the egress device; the request uses only routes over this device; 0 for any.
	Device int
	// From is the source, an address of this node; replies take the routes to it. Invalid: the kernel selects the source, which it cannot with a Hop.
	From netip.Addr
	// Hop is the neighbour to which the request is sent, independent of routes; nil for none.
	Hop *Hop
}

// data returns the length of the data after the ICMP header.
func (r Request) data() int {
	header := ipv4Header
	if r.To.Is6() {
		header = ipv6Header
	}
	return max(echoNonce, min(r.Size, MaxSize)-header-echoHeader)
}

// control returns the ancillary data that selects the source and the device of the request; nil when the kernel selects both.
func (r Request) control() []byte {
	switch {
	case r.Device == 0 && !r.From.IsValid():
		return nil
	case r.To.Is6():
		info := unix.Inet6Pktinfo{Ifindex: uint32(r.Device)}
		copy(info.Addr[:], r.From.AsSlice())
		return unix.PktInfo6(&info)
	}
	info := unix.Inet4Pktinfo{Ifindex: int32(r.Device)}
	copy(info.Spec_dst[:], r.From.AsSlice())
	return unix.PktInfo4(&info)
}

// Pinger sends ICMP echo requests through one raw socket of each family. Raw sockets receive the replies of all pings of the node; a filter in the kernel
// drops replies with another identifier. A reply counts when its source is the requested address, and its length, sequence number and random data are those
// of the request. So neither another ping nor a host that cannot see the request can produce a valid reply.
type Pinger struct {
	whole   bool                 // requests are never fragmented; their limit is the MTU of the device
	mu      sync.Mutex           // guards the fields below
	sockets map[bool]*echoSocket // by whether they are IPv6
	frames  *os.File             // socket for requests to a [Hop]; nil before the first
	readers sync.WaitGroup
}

// echoSocket is the socket of one family.
type echoSocket struct {
	conn  *net.IPConn
	ipv6  bool
	id    uint16
	whole bool // as in [Pinger]

	mu      sync.Mutex // guards the fields below
	next    uint16
	waiting map[uint16]*echoWait // by sequence number
}

// echoWait is a request that waits for its reply.
type echoWait struct {
	to    netip.Addr
	data  int // length
	nonce uint64
	reply chan time.Time // with one slot
}

// New returns a pinger without sockets.
func New() *Pinger { return &Pinger{sockets: map[bool]*echoSocket{}} }

// NewWhole returns a pinger whose packets are never fragmented on the path to the peer, even if they exceed the kernel's path MTU: the pinger tests this MTU.
// The peer may fragment the reply.
func NewWhole() *Pinger { return &Pinger{whole: true, sockets: map[bool]*echoSocket{}} }

// Open opens the sockets. After a failure, Echo tries again and returns the error.
func (p *Pinger) Open() {
	for _, ipv6 := range []bool{false, true} {
		_, _ = p.socket(ipv6)
	}
}

// Close closes the sockets and waits for their readers. The next request opens new sockets.
func (p *Pinger) Close() {
	p.mu.Lock()
	for _, s := range p.sockets {
		_ = s.conn.Close()
	}
	if p.frames != nil {
		_ = p.frames.Close()
		p.frames = nil
	}
	p.mu.Unlock()
	p.readers.Wait()
}

// socket returns the socket of a family. The calling goroutine opens it in its own network namespace.
func (p *Pinger) socket(ipv6 bool) (*echoSocket, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.sockets[ipv6]; s != nil {
		return s, nil
	}
	s := &echoSocket{ipv6: ipv6, whole: p.whole, id: uint16(rand.Uint32()), next: uint16(rand.Uint32()), waiting: map[uint16]*echoWait{}}
	if err := s.open(); err != nil {
		return nil, err
	}
	p.sockets[ipv6] = s
	p.readers.Go(func() {
		s.read()
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.sockets, ipv6) // the next request opens another socket
	})
	return s, nil
}

// Echo sends one request and returns the time until its reply.
func (p *Pinger) Echo(ctx context.Context, r Request) (time.Duration, error) {
	to := r.To
	s, err := p.socket(to.Is6())
	if err != nil {
		return 0, CannotOpen(err)
	}
	sequence, w := s.add(r)
	defer s.remove(sequence)
	began := time.Now()
	_ = s.conn.SetWriteDeadline(began.Add(writeTimeout)) // also extends the deadline of concurrent writers, which is correct
	if err := p.send(s, r, s.request(sequence, w)); err != nil {
		if errors.Is(err, net.ErrClosed) {
			err = fmt.Errorf("%w: %w", ErrLocal, net.ErrClosed)
		}
		return 0, Local(err)
	}
	select {
	case at := <-w.reply:
		return at.Sub(began), nil
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// send sends the ICMP message of a request.
func (p *Pinger) send(s *echoSocket, r Request, message []byte) error {
	if r.Hop != nil {
		return p.sendTo(*r.Hop, r.From, r.To, message)
	}
	_, _, err := s.conn.WriteMsgIP(message, r.control(), &net.IPAddr{IP: r.To.AsSlice(), Zone: r.To.Zone()})
	return err
}

// CannotOpen returns the error of a node that cannot open a raw socket.
func CannotOpen(cause error) error {
	var number syscall.Errno
	if errors.As(cause, &number) {
		cause = number // the rest of the error names the system call
	}
	remedy := ""
	if number == syscall.EPERM {
		remedy = ": give the agent CAP_NET_RAW"
	}
	return fmt.Errorf("%w: open a raw socket for ICMP: %w%s", ErrLocal, cause, remedy)
}

// open opens the socket with its filters. The ICMP type filter runs before a packet is copied.
func (s *echoSocket) open() error {
	network := "ip4:icmp"
	if s.ipv6 {
		network = "ip6:ipv6-icmp"
	}
	control := func(_, _ string, raw syscall.RawConn) (err error) {
		if failed := raw.Control(func(fd uintptr) { err = s.prepare(int(fd)) }); failed != nil {
			return failed
		}
		return err
	}
	conn, err := (&net.ListenConfig{Control: control}).ListenPacket(context.Background(), network, "")
	if err != nil {
		return err
	}
	s.conn = conn.(*net.IPConn)
	return nil
}

// icmpFilter is ICMP_FILTER of the level SOL_RAW (linux/icmp.h): a bit mask of the types that are dropped.
const icmpFilter = 1

// prepare sets the socket options and the filter: the socket receives echo replies with its identifier. Programs see the IPv4 header, but no IPv6 header.
func (s *echoSocket) prepare(fd int) error {
	if s.whole {
		level, option, probe := unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE
		if s.ipv6 {
			level, option, probe = unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE
		}
		if err := unix.SetsockoptInt(fd, level, option, probe); err != nil {
			return fmt.Errorf("forbid fragments: %w", err)
		}
	}
	program := []unix.SockFilter{
		{Code: unix.BPF_LDX | unix.BPF_B | unix.BPF_MSH, K: 0}, // X = length of the IPv4 header
		{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_IND, K: 4},  // identifier
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(s.id), Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 1 << 16},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
	}
	if s.ipv6 {
		program[0] = unix.SockFilter{Code: unix.BPF_LDX | unix.BPF_IMM, K: 0}
		types := unix.ICMPv6Filter{Data: [8]uint32{0: ^uint32(0), 1: ^uint32(0), 2: ^uint32(0), 3: ^uint32(0),
			4: ^uint32(1 << (echoReply6 % 32)), 5: ^uint32(0), 6: ^uint32(0), 7: ^uint32(0)}}
		if err := unix.SetsockoptICMPv6Filter(fd, unix.IPPROTO_ICMPV6, unix.ICMPV6_FILTER, &types); err != nil {
			return err
		}
	} else if err := unix.SetsockoptInt(fd, unix.SOL_RAW, icmpFilter, ^(1 << echoReply4)); err != nil {
		return err
	}
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]})
}

// add registers a request under a sequence number that no other request of the socket has.
func (s *echoSocket) add(r Request) (sequence uint16, w *echoWait) {
	w = &echoWait{r.To.WithZone(""), r.data(), rand.Uint64(), make(chan time.Time, 1)}
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.next++; s.waiting[s.next] != nil; s.next++ { // far fewer requests are pending than numbers exist
	}
	s.waiting[s.next] = w
	return s.next, w
}

func (s *echoSocket) remove(sequence uint16) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.waiting, sequence)
}

// request builds the ICMP message. The kernel computes the checksum of ICMPv6, which covers addresses.
func (s *echoSocket) request(sequence uint16, w *echoWait) []byte {
	m := make([]byte, echoHeader+w.data)
	m[0] = echoRequest4
	if s.ipv6 {
		m[0] = echoRequest6
	}
	binary.BigEndian.PutUint16(m[4:], s.id)
	binary.BigEndian.PutUint16(m[6:], sequence)
	binary.BigEndian.PutUint64(m[echoHeader:], w.nonce)
	if !s.ipv6 {
		binary.BigEndian.PutUint16(m[2:], checksum(m))
	}
	return m
}

// checksum returns the checksum of RFC 1071, for up to [MaxSize] bytes.
func checksum(b []byte) uint16 {
	sum := uint32(0)
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) > 0 {
		sum += uint32(b[0]) << 8
	}
	sum = sum>>16 + sum&0xffff
	return ^uint16(sum>>16 + sum)
}

// read delivers replies to their requests until the socket fails or is closed.
func (s *echoSocket) read() {
	defer s.conn.Close()
	buffer := make([]byte, MaxSize)
	for {
		n, from, err := s.conn.ReadFromIP(buffer)
		if err != nil {
			return
		}
		if addr, ok := netip.AddrFromSlice(from.IP); ok {
			s.deliver(buffer[:n], addr.Unmap(), time.Now())
		}
	}
}

// deliver delivers a message from an address to the matching pending request, if any.
func (s *echoSocket) deliver(m []byte, from netip.Addr, at time.Time) {
	kind := byte(echoReply4)
	if s.ipv6 {
		kind = echoReply6
	}
	if len(m) < echoHeader+echoNonce || m[0] != kind || m[1] != 0 || binary.BigEndian.Uint16(m[4:]) != s.id {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.waiting[binary.BigEndian.Uint16(m[6:])]
	if w == nil || w.to != from || len(m) != echoHeader+w.data || w.nonce != binary.BigEndian.Uint64(m[echoHeader:]) {
		return
	}
	select {
	case w.reply <- at:
	default: // a duplicate
	}
}

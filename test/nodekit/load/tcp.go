package load

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// replyTimeout is the timeout of an answer: longer than the kernel's first five retransmissions take.
	replyTimeout = 15 * time.Second
	maxMessage   = 4096 // bytes; the minimum is 1
)

// server echoes the data of its connections.
type server struct {
	path          Path
	listener      net.Listener
	addr          string
	done          sync.WaitGroup
	mu            sync.Mutex
	conns         map[int]*net.TCPConn // by the order of acceptance: the peer's address may differ between the two ends
	retransmitted int                  // segments of the server's ends
}

func newServer(path Path) (*server, error) {
	s := &server{path: path, conns: map[int]*net.TCPConn{}}
	if err := path.To.Do(func() (err error) {
		s.listener, err = net.Listen("tcp", netip.AddrPortFrom(path.Addr, path.Port).String())
		return err
	}); err != nil {
		return nil, err
	}
	s.addr = path.target(s.listener.Addr())
	s.done.Go(s.accept)
	return s, nil
}

func (s *server) accept() {
	for number := 0; ; number++ {
		conn, err := s.listener.Accept()
		if err != nil {
			return
		}
		tcp := conn.(*net.TCPConn)
		s.mu.Lock()
		s.conns[number] = tcp
		s.mu.Unlock()
		s.done.Go(func() { s.echo(tcp, number) })
	}
}

func (s *server) echo(conn *net.TCPConn, number int) {
	buffer := make([]byte, maxMessage)
	for {
		n, err := conn.Read(buffer)
		if err == nil {
			_, err = conn.Write(buffer[:n])
		}
		if err != nil {
			break
		}
	}
	again := retransmissions(conn)
	_ = conn.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, number)
	s.retransmitted += again
}

func (s *server) close() error {
	err := s.listener.Close()
	s.mu.Lock()
	for _, conn := range s.conns { // connections whose client is gone
		_ = conn.SetDeadline(time.Now())
	}
	s.mu.Unlock()
	s.done.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// accepted returns the connection with a number, or nil if it is not accepted yet or has ended.
func (s *server) accepted(number int) *net.TCPConn {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conns[number]
}

// dial connects from the calling thread's namespace.
func (s *server) dial() (*net.TCPConn, error) {
	conn, err := net.DialTimeout("tcp", s.addr, replyTimeout)
	if err != nil {
		return nil, err
	}
	return conn.(*net.TCPConn), nil
}

// connection is the client's end of a long connection.
type connection struct {
	*net.TCPConn
	server *server
	number int // in the order of acceptance by the server
	path   Path
	rand   *rand.Rand
}

// underway returns the number of segments, in both directions, that were sent and have not arrived yet, by the counters of both ends. It includes the
// segments of the handshake that a socket does not count, which are equally many for every connection.
func (c *connection) underway() int {
	far := c.server.accepted(c.number)
	if far == nil {
		return 0
	}
	for a := info(c.TCPConn); ; {
		b, again := info(far), info(c.TCPConn)
		if a.Segs_out == again.Segs_out && a.Segs_in == again.Segs_in { // the counters of both ends are of one moment
			return int(a.Segs_out) - int(b.Segs_in) + int(b.Segs_out) - int(a.Segs_in)
		}
		a = again
	}
}

// connect opens the long connections, equally many on each path, and checks each once.
func (l *Load) connect(count int) ([]*connection, error) {
	var all []*connection
	for i, s := range l.servers {
		share := count / len(l.servers)
		if i < count%len(l.servers) {
			share++
		}
		if err := s.path.From.Do(func() error {
			for number := range share {
				conn, err := s.dial()
				if err != nil {
					return err
				}
				all = append(all, &connection{TCPConn: conn, server: s, number: number, path: s.path, rand: newRandom(1, uint64(len(all)))})
				for deadline := time.Now().Add(replyTimeout); s.accepted(number) == nil; time.Sleep(time.Millisecond) { // before the next one
					if time.Now().After(deadline) {
						return errors.New("the server does not accept a connection")
					}
				}
			}
			return nil
		}); err != nil {
			for _, c := range all {
				_ = c.Close()
			}
			return nil, fmt.Errorf("%s: %w", s.path.Name, err)
		}
	}
	for i, c := range all {
		if err := exchange(c, c.rand); err != nil {
			return nil, fmt.Errorf("%s: %w", c.path.Name, err)
		}
		if underway := c.underway(); i == 0 || underway < l.handshake { // an acknowledgement may be in flight
			l.handshake = underway
		}
	}
	return all, nil
}

// converse sends messages over one connection until the load stops, then closes the connection gracefully.
func (l *Load) converse(c *connection, period, offset time.Duration) {
	defer c.Close()
	count, again, longest, whole := 0, 0, time.Duration(0), true
	overslept := l.every(period, offset, func() bool {
		begin := time.Now()
		err := exchange(c, c.rand)
		took := time.Since(begin)
		count++
		l.sent.messages.Add(1)
		longest = max(longest, took)
		if err != nil {
			whole = false
			l.lostMessage(c.path, count, err)
		}
		if now := retransmissions(c.TCPConn); now != again {
			l.faults.add(c.path.Name, "TCP message %d took %v, %d segments of the connection were sent again so far", count, took, now)
			again = now
		}
		return whole
	})
	missing := 0
	if whole {
		missing = l.missingSegments(c)
		if err := hangUp(c.TCPConn); err != nil {
			l.lostMessage(c.path, count, fmt.Errorf("close: %w", err))
		}
	}
	l.faults.mu.Lock()
	defer l.faults.mu.Unlock()
	l.tcp.Messages += count
	l.tcp.Overslept += overslept
	l.tcp.LostSegments += missing
	l.tcp.Retransmitted += again
	l.tcp.LongestRoundTrip = max(l.tcp.LongestRoundTrip, longest)
}

// missingSegments waits until an idle connection has received all segments, and returns the number of missing ones.
func (l *Load) missingSegments(c *connection) (count int) {
	for deadline := time.Now().Add(settle); ; time.Sleep(20 * time.Millisecond) {
		count = c.underway() - l.handshake
		if count <= 0 || time.Now().After(deadline) {
			break
		}
	}
	if count > 0 {
		l.faults.add(c.path.Name, "%d TCP segments never arrived", count)
	}
	return max(0, count)
}

var errCorrupted = errors.New("the answer differs from the message")

// lostMessage increments exactly one counter.
func (l *Load) lostMessage(path Path, number int, err error) {
	l.faults.add(path.Name, "TCP message %d: %v", number, err)
	l.faults.mu.Lock()
	defer l.faults.mu.Unlock()
	switch {
	case errors.Is(err, errCorrupted):
		l.tcp.Corrupted++
	case isTimeout(err):
		l.tcp.Lost++
	default:
		l.tcp.Reset++
	}
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// exchange sends random bytes and compares the echo.
func exchange(conn net.Conn, random *rand.Rand) error {
	sent := make([]byte, 1+random.IntN(maxMessage))
	for i := range sent {
		sent[i] = byte(random.Uint32())
	}
	if err := conn.SetDeadline(time.Now().Add(replyTimeout)); err != nil {
		return err
	}
	if _, err := conn.Write(sent); err != nil {
		return err
	}
	received := make([]byte, len(sent))
	if _, err := io.ReadFull(conn, received); err != nil {
		return err
	}
	if !bytes.Equal(sent, received) {
		return errCorrupted
	}
	return nil
}

// newRandom returns the source of the messages' bytes. The report need not print them, because the echo is compared with the sent bytes.
func newRandom(kind, number uint64) *rand.Rand { return rand.New(rand.NewPCG(kind, number)) }

// hangUp closes the sending direction and requires EOF, without further data, from the other end.
func hangUp(conn *net.TCPConn) error {
	if err := conn.SetDeadline(time.Now().Add(replyTimeout)); err != nil {
		return err
	}
	if err := conn.CloseWrite(); err != nil {
		return err
	}
	switch n, err := conn.Read(make([]byte, 1)); {
	case n > 0:
		return errCorrupted
	case err != io.EOF:
		return err
	}
	return nil
}

// retransmissions returns the number of segments that a connection sent again, without the duplicates that the other end reported: on a busy machine an
// acknowledgement may arrive after the kernel's timeout. A closing connection may end before it gets such a report, so the counters are read before the
// close.
func retransmissions(conn *net.TCPConn) int {
	i := info(conn)
	return max(0, int(i.Total_retrans)-int(i.Dsack_dups))
}

// info returns the kernel's TCP_INFO of a connection, or zeros if it is closed.
func info(conn *net.TCPConn) (all unix.TCPInfo) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return all
	}
	_ = raw.Control(func(fd uintptr) {
		if i, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			all = *i
		}
	})
	return all
}

// connectOften opens short connections. The thread stays in the namespace of the connecting end.
func (l *Load) connectOften(s *server, period, offset time.Duration) {
	random := newRandom(2, uint64(offset))
	if err := s.path.From.Do(func() error {
		if err := goAhead(); err != nil {
			return err
		}
		overslept := l.every(period, offset, func() bool { l.connectOnce(s, random); return true })
		l.faults.mu.Lock()
		defer l.faults.mu.Unlock()
		l.short.Overslept += overslept
		return nil
	}); err != nil {
		l.faults.add(s.path.Name, "%v", err)
	}
}

func (l *Load) connectOnce(s *server, random *rand.Rand) {
	begin, again := time.Now(), 0
	conn, err := s.dial()
	if err == nil {
		err = exchange(conn, random)
		again = retransmissions(conn)
		if err == nil {
			err = hangUp(conn)
		}
		_ = conn.Close()
	}
	took := time.Since(begin)
	if err != nil || again > 0 {
		l.faults.add(s.path.Name, "short connection: %d segments sent again in %v: %v", again, took, err)
	}
	l.sent.connects.Add(1)
	l.faults.mu.Lock()
	defer l.faults.mu.Unlock()
	l.short.Longest = max(l.short.Longest, took)
	l.short.Retransmitted += again
	if err == nil {
		l.short.Done++
		return
	}
	l.short.Failed++
	if errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.EPIPE) {
		l.short.Reset++
	}
}

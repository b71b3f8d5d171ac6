package kubeapi

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Gathering returns a context for a watch that collects events for an interval: in a large cluster an event arrives every few milliseconds, and each
// wakeup costs several times as much as reading it. An event after a pause of that length is read immediately, and bytes that are already available are
// never delayed.
//
// Such a watch has its own connection with HTTP/1.1: on a shared connection, every event of any watch wakes the reader. The goroutine that reads the
// body calls drained before it waits for more; drained may be nil.
func Gathering(ctx context.Context, interval time.Duration, drained func()) context.Context {
	return context.WithValue(ctx, gatheringKey{}, &gathering{interval: interval, drained: drained})
}

type gatheringKey struct{}

// gathering is the state of one request that collects events.
type gathering struct {
	interval time.Duration
	drained  func()
	conn     atomic.Pointer[gatheredConn]
}

// gatheringOf returns nil for requests that do not collect events.
func gatheringOf(ctx context.Context) *gathering {
	g, _ := ctx.Value(gatheringKey{}).(*gathering)
	return g
}

// over wraps the connection of the request.
func (g *gathering) over(conn net.Conn) net.Conn {
	c := &gatheredConn{Conn: conn, gathering: g, buffer: make([]byte, gatherBuffer)}
	c.arrivals = &pauses{Conn: conn, closed: make(chan struct{})}
	if tcp, ok := conn.(*net.TCPConn); ok {
		if raw, err := tcp.SyscallConn(); err == nil {
			c.arrivals = &lowWater{TCPConn: tcp, raw: raw}
		}
	}
	g.conn.Store(c)
	return c
}

// begin starts collecting with the body of the response. Earlier bytes, such as the TLS handshake, are read immediately.
func (g *gathering) begin() {
	if g == nil {
		return
	}
	if c := g.conn.Load(); c != nil {
		c.begun.Store(true)
	}
}

// gatherBuffer is the size of a read in bytes. Ten events in an interval have 5 to 40 KB.
const gatherBuffer = 32 << 10

// gatheredConn supports one reading goroutine.
type gatheredConn struct {
	net.Conn
	*gathering
	arrivals

	begun  atomic.Bool
	buffer []byte
	unread []byte    // part of buffer
	last   time.Time // time of the last arrival that the reader had waited for
}

// arrivals are bytes that a connection receives.
type arrivals interface {
	// arrived reads the bytes that have arrived; 0 if there are none.
	arrived(p []byte) (int, error)
	// gather reads the bytes that arrive until a time, or earlier if there are many; 0 if there are none.
	gather(p []byte, until time.Time) (int, error)
	// wait waits for the next bytes and reads them.
	wait(p []byte) (int, error)
	Close() error
}

// Read implements io.Reader.
func (c *gatheredConn) Read(p []byte) (n int, err error) {
	if len(c.unread) == 0 {
		if !c.begun.Load() {
			return c.Conn.Read(p)
		}
		n, err := c.next()
		if n == 0 {
			return 0, err
		}
		c.unread = c.buffer[:n]
	}
	n = copy(p, c.unread)
	c.unread = c.unread[n:]
	return n, nil
}

// next fills the buffer.
func (c *gatheredConn) next() (n int, err error) {
	if n, err = c.arrived(c.buffer); n > 0 || err != nil {
		return n, err
	}
	if c.drained != nil {
		c.drained()
	}
	if until := c.last.Add(c.interval); time.Now().Before(until) {
		n, err = c.gather(c.buffer, until)
	}
	if n == 0 && err == nil {
		n, err = c.wait(c.buffer)
	}
	c.last = time.Now()
	return n, err
}

// Close implements io.Closer.
func (c *gatheredConn) Close() error { return c.arrivals.Close() }

// lowWater makes the kernel delay the wakeup of the runtime's poller while bytes collect: it wakes the poller when there are many, or when the peer has
// closed the connection (SO_RCVLOWAT, socket(7)).
type lowWater struct {
	*net.TCPConn
	raw   syscall.RawConn
	high  bool // the mark is at muchData
	empty bool // the last read emptied the receive buffer
}

// muchData is the number of bytes that end an interval early, so that the first events of a large cluster are not slowed down. The kernel makes the
// receive buffer twice as large, within tcp_rmem.
const muchData = 256 << 10

// arrived implements arrivals.
func (l *lowWater) arrived(p []byte) (n int, err error) {
	if l.empty {
		return 0, nil
	}
	return l.read(p, func(uintptr, error) bool { return true })
}

// gather implements arrivals.
func (l *lowWater) gather(p []byte, until time.Time) (n int, err error) {
	if !l.high {
		if err := l.mark(muchData); err != nil {
			return 0, err
		}
		l.high = true
	}
	if err := l.SetReadDeadline(until); err != nil {
		return 0, err
	}
	announced := false
	err = l.raw.Read(func(uintptr) (done bool) {
		done, announced = announced, true
		return done
	})
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return 0, err
	}
	if err := l.SetReadDeadline(time.Time{}); err != nil {
		return 0, err
	}
	return l.read(p, func(uintptr, error) bool { return true })
}

// wait implements arrivals.
func (l *lowWater) wait(p []byte) (n int, err error) {
	if l.high {
		if err := l.mark(1); err != nil {
			return 0, err
		}
		l.high = false
	}
	return l.read(p, func(_ uintptr, err error) bool { return !errors.Is(err, unix.EAGAIN) })
}

// mark sets the low-water mark: the number of bytes that wake the poller.
func (l *lowWater) mark(n int) (err error) {
	if rawErr := l.raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVLOWAT, n) }); rawErr != nil {
		return rawErr
	}
	return os.NewSyscallError("setsockopt", err)
}

// read repeats the read until done returns true; 0 if the last attempt found no bytes.
func (l *lowWater) read(p []byte, done func(fd uintptr, err error) bool) (n int, err error) {
	if rawErr := l.raw.Read(func(fd uintptr) bool {
		for n, err = unix.Read(int(fd), p); errors.Is(err, unix.EINTR); n, err = unix.Read(int(fd), p) {
		}
		return done(fd, err)
	}); rawErr != nil {
		return 0, rawErr
	}
	l.empty = n < len(p)
	switch {
	case errors.Is(err, unix.EAGAIN):
		return 0, nil
	case err != nil:
		return 0, &net.OpError{Op: "read", Net: "tcp", Source: l.LocalAddr(), Addr: l.RemoteAddr(), Err: os.NewSyscallError("read", err)}
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}

// pauses collects events on a connection that is not a TCP socket.
type pauses struct {
	net.Conn
	once   sync.Once
	closed chan struct{}
}

// waited is the minimum duration of a read that finds no bytes.
const waited = time.Millisecond

// arrived implements arrivals.
func (c *pauses) arrived(p []byte) (n int, err error) {
	if err := c.SetReadDeadline(time.Now().Add(waited)); err != nil {
		return 0, err
	}
	n, err = c.Conn.Read(p)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = nil
	}
	return n, errors.Join(err, c.SetReadDeadline(time.Time{}))
}

// gather implements arrivals.
func (c *pauses) gather(p []byte, until time.Time) (int, error) {
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-c.closed:
	}
	return c.arrived(p)
}

// wait implements arrivals.
func (c *pauses) wait(p []byte) (int, error) { return c.Conn.Read(p) }

// Close implements arrivals.
func (c *pauses) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

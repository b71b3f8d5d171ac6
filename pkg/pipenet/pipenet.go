// Package pipenet connects clients and servers of tests through memory instead of sockets, so that both can run in a bubble of
// testing/synctest, where a goroutine that waits for a socket would stop virtual time.
package pipenet

import (
	"context"
	"net"
	"os"
	"sync"
	"syscall"
)

// Listener implements [net.Listener]. Clients reach it with [Listener.Dial].
type Listener struct {
	address string
	accept  chan net.Conn
	close   func()
	closed  chan struct{}
	freeze  func()
	frozen  chan struct{} // closed by Freeze
}

// Listen returns a listener. address is only the result of [Listener.Addr].
func Listen(address string) *Listener {
	l := &Listener{address: address, accept: make(chan net.Conn), closed: make(chan struct{}), frozen: make(chan struct{})}
	l.close = sync.OnceFunc(func() { close(l.closed) })
	l.freeze = sync.OnceFunc(func() { close(l.frozen) })
	return l
}

// Dial connects as [net.Dialer.DialContext] does: it waits for [Listener.Accept], and returns the error of [ConnectionRefused] for a closed listener.
func (l *Listener) Dial(ctx context.Context) (net.Conn, error) {
	accept := l.accept
	select {
	case <-l.frozen:
		accept = nil
	default:
	}
	near, far := net.Pipe()
	select {
	case accept <- far:
		return &conn{Conn: near, frozen: l.frozen, closed: make(chan struct{})}, nil
	case <-l.closed:
		return nil, ConnectionRefused()
	case <-ctx.Done():
		return nil, &net.OpError{Op: "dial", Net: "pipe", Err: os.ErrDeadlineExceeded}
	}
}

// ConnectionRefused returns the error of a connection to an address without a listener.
func ConnectionRefused() error {
	return &net.OpError{Op: "dial", Net: "pipe", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
}

// Freeze simulates a power loss of the listener's host: connections stay open and deliver no data, and new connections are not established.
func (l *Listener) Freeze() { l.freeze() }

// Accept implements [net.Listener].
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.accept:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close implements [net.Listener].
func (l *Listener) Close() error { l.close(); return nil }

// Addr implements [net.Listener].
func (l *Listener) Addr() net.Addr { return address(l.address) }

type address string

func (address) Network() string  { return "pipe" }
func (a address) String() string { return string(a) }

// conn is the client's end of a connection. Once the host is frozen it neither delivers nor fails.
type conn struct {
	net.Conn
	frozen <-chan struct{}
	once   sync.Once
	closed chan struct{}
}

// Read implements [net.Conn].
func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	select {
	case <-c.frozen:
		<-c.closed
		return 0, net.ErrClosed
	default:
		return n, err
	}
}

// Write implements [net.Conn].
func (c *conn) Write(p []byte) (int, error) {
	select {
	case <-c.frozen:
		return len(p), nil
	default:
		return c.Conn.Write(p)
	}
}

// Close implements [net.Conn].
func (c *conn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

package nodehealthprober

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cilium/hive/cell"

	"github.com/waggle-net/waggle/pkg/watchdog"
)

// helloPath is the path of probes. The parameter bytes sets the size of the reply's body, 0 without it.
const helloPath = "/hello"

// maxBody limits the body of a reply in bytes.
const maxBody = 16 << 10

const (
	// connectionTimeout is the maximum lifetime of a connection.
	connectionTimeout = 5 * time.Second
	// maxRequest limits a request with its headers in bytes.
	maxRequest = 4 << 10
	// maxConnections limits the concurrent connections, and maxOfSource the connections from one address.
	maxConnections = 256
	maxOfSource    = 16
	// acceptPause is the pause after a failed accept.
	acceptPause = 50 * time.Millisecond
)

// responder replies to probes of other nodes. Any host can connect, so each connection serves one small request within a short time, and a new connection
// beyond a limit closes the oldest one.
type responder struct {
	cell.In

	Kernel  kernel
	Options options
	View    *view
}

// run listens and serves. An error closes the port; the job opens it again.
func (r responder) run(ctx context.Context, health cell.Health) error {
	watchdog.Busy(ctx)
	l, err := r.Kernel.ListenHello(ctx, r.Options.port)
	if err != nil {
		return err
	}
	open := connections{view: r.View}
	defer open.wait()
	defer l.Close()
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	well := "listening on " + l.Addr().String()
	health.OK(well)
	watchdog.Idle(ctx) // Accept blocks until a connection arrives
	for failed := false; ctx.Err() == nil; {
		conn, err := l.Accept()
		switch {
		case err == nil:
			if failed {
				failed = false
				health.OK(well)
			}
			open.serve(conn)
		case ctx.Err() != nil:
		case errors.Is(err, net.ErrClosed):
			return err
		default: // the connection failed before it was accepted, or no file descriptor is free
			failed = true
			health.Degraded("accept a probe", err)
			select {
			case <-ctx.Done():
			case <-time.After(acceptPause):
			}
		}
	}
	return nil
}

// connections holds the open connections, the oldest first.
type connections struct {
	view    *view
	serving sync.WaitGroup
	mu      sync.Mutex // guards all
	all     []*connection
}

type connection struct {
	net.Conn
	source netip.Addr // invalid when the connection has no IP address
}

// wait closes all connections and waits for their goroutines.
func (c *connections) wait() {
	c.mu.Lock()
	for _, conn := range c.all {
		_ = conn.Close()
	}
	c.mu.Unlock()
	c.serving.Wait()
}

// serve replies to one request of a connection, in a separate goroutine.
func (c *connections) serve(inner net.Conn) {
	conn := &connection{Conn: inner}
	if at, ok := inner.RemoteAddr().(*net.TCPAddr); ok {
		conn.source = at.AddrPort().Addr().Unmap().WithZone("")
	}
	c.add(conn)
	c.serving.Go(func() {
		defer c.remove(conn)
		_ = conn.SetDeadline(time.Now().Add(connectionTimeout))
		request, err := http.ReadRequest(bufio.NewReaderSize(io.LimitReader(conn, maxRequest), 1024))
		if err != nil {
			return // not a request, or too long
		}
		_, _ = io.WriteString(conn, responseTo(request, c.view))
	})
}

// add registers a connection. Beyond a limit it closes the oldest connection, or the oldest one of the same source if the source exceeds its limit.
func (c *connections) add(conn *connection) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, conn)
	ofSource, first := 0, -1
	for i, other := range c.all {
		if other.source == conn.source {
			if ofSource++; first < 0 {
				first = i
			}
		}
	}
	switch {
	case ofSource > maxOfSource:
		c.drop(first)
	case len(c.all) > maxConnections:
		c.drop(0)
	}
}

// drop closes a connection, which ends its goroutine. The caller must hold mu.
func (c *connections) drop(i int) {
	_ = c.all[i].Close()
	c.all = append(c.all[:i], c.all[i+1:]...)
}

func (c *connections) remove(conn *connection) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, other := range c.all {
		if other == conn {
			c.drop(i)
			return
		}
	}
}

// responseTo returns the complete reply to a request. If the request names its node, the reply has the digest of the nodes that this agent knows.
func responseTo(r *http.Request, known *view) string {
	status, body := "200 OK", 0
	if n, err := strconv.Atoi(r.URL.Query().Get("bytes")); err == nil {
		body = max(0, min(n, maxBody))
	}
	switch {
	case r.URL.Path != helloPath:
		status = "404 Not Found"
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		status = "405 Method Not Allowed\r\nAllow: GET, HEAD"
	}
	if status != "200 OK" || r.Method == http.MethodHead {
		body = 0
	}
	header := ""
	if requester, err := url.PathUnescape(r.Header.Get(requesterHeader)); err == nil && requester != "" && status == "200 OK" {
		if d := known.with(requester); d != nil {
			header = digestHeader + ": " + d.text() + "\r\n"
		}
	}
	return fmt.Sprintf("HTTP/1.1 %s\r\nContent-Length: %d\r\n%sConnection: close\r\n\r\n%s", status, body, header, strings.Repeat("-", body))
}

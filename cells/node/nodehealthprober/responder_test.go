package nodehealthprober

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/hive/cell"

	"github.com/waggle-net/waggle/pkg/pipenet"
)

// listening is a kernel with a given listener for the responder.
type listening struct {
	kernel
	l net.Listener
}

func (l listening) ListenHello(context.Context, uint16) (net.Listener, error) { return l.l, nil }

// respond runs the responder until the test ends.
func respond(t *testing.T, l net.Listener) *cell.SimpleHealth {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	health, root := cell.NewSimpleHealth()
	var running sync.WaitGroup
	running.Go(func() {
		if err := (responder{Kernel: listening{l: l}}).run(ctx, health); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); running.Wait() })
	return root
}

// send sends a text and returns the status line of the reply.
func send(ctx context.Context, l *pipenet.Listener, text string) (string, error) {
	conn, err := l.Dial(ctx)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	go func() { _, _ = io.WriteString(conn, text) }()
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return "", err
	}
	return answer.Status, answer.Body.Close()
}

func TestResponder_Answers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := pipenet.Listen("hello")
		respond(t, l)
		for text, want := range map[string]string{
			"GET /hello HTTP/1.1\r\nHost: x\r\n\r\n":                       "200 OK",
			"HEAD /hello HTTP/1.0\r\n\r\n":                                 "200 OK",
			"GET /hello?x=y HTTP/1.1\r\nHost: x\r\n\r\n":                   "200 OK",
			"GET / HTTP/1.1\r\nHost: x\r\n\r\n":                            "404 Not Found",
			"GET /hello/../secret HTTP/1.1\r\nHost: x\r\n\r\n":             "404 Not Found",
			"POST /hello HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n": "405 Method Not Allowed",
		} {
			if got, err := send(t.Context(), l, text); err != nil || got != want {
				t.Errorf("%q: %q (%v), want %q", text, got, err, want)
			}
		}
		for name, test := range map[string]struct {
			text string
			took time.Duration
		}{
			"no HTTP":      {"\x00\x01\x02\r\n\r\n", 0},
			"no end":       {"GET /hello HTTP/1.1\r\n" + strings.Repeat("X: y\r\n", maxRequest), 0},
			"a long line":  {"GET /hello" + strings.Repeat("o", 2*maxRequest), 0},
			"half of it":   {"GET /hello HTTP/1.1\r\nHost", connectionTimeout},
			"not a letter": {"", connectionTimeout},
		} {
			begin := time.Now()
			if got, err := send(t.Context(), l, test.text); err == nil || time.Since(begin) != test.took {
				t.Errorf("%s: answer %q after %v, want the end of the connection after %v", name, got, time.Since(begin), test.took)
			}
		}
	})
}

// A probe may request a reply of a certain length, which is limited.
func TestResponder_ReplyLength(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := pipenet.Listen("hello")
		respond(t, l)
		for query, want := range map[string]int{"": 0, "?bytes=1200": 1200, "?bytes=99999999": maxBody, "?bytes=-1": 0, "?bytes=x": 0} {
			conn, err := l.Dial(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			go func() { _, _ = io.WriteString(conn, "GET /hello"+query+" HTTP/1.1\r\n\r\n") }()
			answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(answer.Body)
			if err := errors.Join(err, answer.Body.Close(), conn.Close()); err != nil || len(body) != want {
				t.Errorf("%q: %d bytes (%v), want %d", query, len(body), err, want)
			}
		}
		if got := responseTo(&http.Request{Method: http.MethodHead, URL: &url.URL{Path: helloPath, RawQuery: "bytes=9"}}, nil); !strings.HasSuffix(got, "Content-Length: 0\r\nConnection: close\r\n\r\n") {
			t.Errorf("HEAD has a body: %q", got)
		}
	})
}

// faulty is a listener whose first calls of Accept fail.
type faulty struct {
	*pipenet.Listener
	mu   sync.Mutex
	errs []error
}

func (f *faulty) Accept() (net.Conn, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.errs) > 0 {
		err := f.errs[0]
		f.errs = f.errs[1:]
		return nil, err
	}
	return f.Listener.Accept()
}

// Neither an error of an incoming connection nor a lack of file descriptors ends the responder.
func TestResponder_FailedAccept_Continues(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &faulty{Listener: pipenet.Listen("hello"), errs: []error{syscall.ECONNABORTED, syscall.EPROTO, syscall.EMFILE, errors.New("odd")}}
		health := respond(t, l)
		synctest.Wait()
		if health.Lock(); health.Level != "Degraded" {
			t.Errorf("health is %v %s, want it degraded", health.Level, health.Status)
		}
		health.Unlock()
		if got, err := send(t.Context(), l.Listener, "GET /hello HTTP/1.1\r\n\r\n"); err != nil || got != "200 OK" {
			t.Errorf("after errors: %q, %v", got, err)
		}
		if health.Lock(); health.Level != "OK" {
			t.Errorf("health is %v %s, want it well", health.Level, health.Status)
		}
		health.Unlock()
	})
}

// The error of a closed port must reach the job, so that the job opens the port again.
func TestResponder_ClosedPort_IsAnError(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := pipenet.Listen("hello")
		health, _ := cell.NewSimpleHealth()
		time.AfterFunc(time.Second, func() { _ = l.Close() })
		if err := (responder{Kernel: listening{l: l}}).run(t.Context(), health); !errors.Is(err, net.ErrClosed) {
			t.Errorf("error %v", err)
		}
	})
}

// from is a listener whose connections have given client addresses.
type from struct {
	*pipenet.Listener
	mu      sync.Mutex
	sources []string // source addresses of the next connections
}

type sourced struct {
	net.Conn
	source net.Addr
}

func (s sourced) RemoteAddr() net.Addr { return s.source }

func (f *from) Accept() (net.Conn, error) {
	conn, err := f.Listener.Accept()
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	source := f.sources[0]
	f.sources = f.sources[1:]
	return sourced{conn, net.TCPAddrFromAddrPort(netip.MustParseAddrPort(source))}, nil
}

// open opens connections that send nothing, and returns a function that counts the connections that are still open.
func (f *from) open(t *testing.T, number int, source func(int) string) (left func() int) {
	t.Helper()
	var mu sync.Mutex
	count := 0
	for i := range number {
		f.mu.Lock()
		f.sources = append(f.sources, source(i))
		f.mu.Unlock()
		conn, err := f.Dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		mu.Lock()
		count++
		mu.Unlock()
		go func() {
			_, _ = io.Copy(io.Discard, conn)
			mu.Lock()
			count--
			mu.Unlock()
		}()
		synctest.Wait()
	}
	return func() int { mu.Lock(); defer mu.Unlock(); return count }
}

// Clients that connect and send nothing do not block other clients, are limited in number, and are disconnected soon.
func TestResponder_SilentClients_AreLimited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &from{Listener: pipenet.Listen("hello")}
		respond(t, l)
		greedy := l.open(t, 1000, func(int) string { return "192.0.2.1:1000" })
		if got := greedy(); got != maxOfSource {
			t.Errorf("one source has %d connections, want %d", got, maxOfSource)
		}
		many := l.open(t, 1000, func(i int) string { return netip.AddrPortFrom(addressOf(i), 1000).String() })
		if got := greedy() + many(); got != maxConnections {
			t.Errorf("%d connections, want %d", got, maxConnections)
		}
		l.sources = append(l.sources, "192.0.2.3:1000")
		if got, err := send(t.Context(), l.Listener, "GET /hello HTTP/1.1\r\n\r\n"); err != nil || got != "200 OK" {
			t.Errorf("beside them: %q, %v", got, err)
		}
		time.Sleep(connectionTimeout)
		synctest.Wait()
		if got := greedy() + many(); got != 0 {
			t.Errorf("%d connections after %v, want none", got, connectionTimeout)
		}
	})
}

// For any reply of a peer, a probe reads a limited number of bytes and ends within its timeout.
func TestAsk_HostilePeer(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		answer func(net.Conn)
		want   string // the error text that operators see
	}{
		"nonsense as digest": {func(c net.Conn) { _, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nWaggle-Nodes: 2 many 7\r\n\r\n") }, ""},
		"a huge digest": {func(c net.Conn) {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nWaggle-Nodes: 2 99999999999999999999 0\r\n\r\n")
		}, ""},
		"well":            {func(c net.Conn) { _, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n") }, ""},
		"another status":  {func(c net.Conn) { _, _ = io.WriteString(c, "HTTP/1.1 503 \x1b[2J\r\n\r\n") }, "HTTP status 503"},
		"no HTTP":         {func(c net.Conn) { _, _ = io.WriteString(c, "\x1b[2J\r\n\r\n") }, `read the answer: malformed HTTP response "\x1b[2J"`},
		"closes":          {func(c net.Conn) { _ = c.Close() }, "read the answer: unexpected EOF"},
		"sends nothing":   {func(net.Conn) {}, "Connection timed out"},
		"never ends":      {func(c net.Conn) { pour(c, "HTTP/1.1 200 OK\r\n", "X: y\r\n", 0) }, `read the answer: malformed MIME header line: "X: y\r"`},
		"drips":           {func(c net.Conn) { pour(c, "HTTP/1.1 200 OK\r\n", "X: y\r\n", time.Second) }, "Connection timed out"},
		"a body for ever": {func(c net.Conn) { pour(c, "HTTP/1.1 200 OK\r\n\r\n", "body", 0) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				near, far := net.Pipe()
				var peer sync.WaitGroup
				peer.Go(func() { _, _ = http.ReadRequest(bufio.NewReader(far)); test.answer(far) })
				ctx, cancel := context.WithTimeout(t.Context(), probeTimeout)
				defer cancel()
				begin := time.Now()
				theirs, err := ask(ctx, near, netip.MustParseAddrPort("192.0.2.1:4240"), "one")
				if theirs != nil {
					t.Errorf("the digest is %v, want none", theirs)
				}
				_ = near.Close()
				got := ""
				if err != nil {
					got = describe(err)
				}
				if got != test.want || time.Since(begin) > probeTimeout {
					t.Errorf("got %q after %v, want %q", got, time.Since(begin), test.want)
				}
				_ = far.Close()
				peer.Wait()
			})
		})
	}
}

// pour writes a text repeatedly, with pauses, until the connection is closed.
func pour(c net.Conn, head, text string, pause time.Duration) {
	_, err := io.WriteString(c, head)
	for err == nil {
		time.Sleep(pause)
		_, err = io.WriteString(c, text)
	}
}

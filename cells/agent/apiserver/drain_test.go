package apiserver

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/hive/hivetest"

	"github.com/waggle-net/waggle/pkg/pipenet"
)

// stopping stops an agent while a PUT is waiting, and returns the reply to the PUT.
func stopping(t *testing.T, f *fixture, meanwhile func()) (put *http.Response) {
	t.Helper()
	f.manager.block = make(chan struct{})
	inner, came := f.handler, make(chan struct{})
	f.handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut {
			close(came)
		}
		inner.ServeHTTP(w, r)
	})
	h, socket, _ := serving(t, f)
	log := hivetest.Logger(t, hivetest.LogLevel(slog.LevelError))
	if err := h.Start(log, t.Context()); err != nil {
		t.Fatal(err)
	}
	conn := dial(t, socket)
	t.Cleanup(func() { conn.Close() })
	if _, err := io.WriteString(conn, "PUT /v1/endpoint/0 HTTP/1.0\r\nContent-Length: 60\r\n\r\n"+
		`{"container-id":"c8","container-interface-name":"eth0"}     `); err != nil {
		t.Fatal(err)
	}
	idle := dial(t, socket) // a kept-alive connection
	t.Cleanup(func() { idle.Close() })
	reader := bufio.NewReader(idle)
	get := func() *http.Response {
		if _, err := io.WriteString(idle, "GET /v1/config HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
			return nil
		}
		r, err := http.ReadResponse(reader, nil)
		if err != nil {
			return nil
		}
		_, _ = io.Copy(io.Discard, r.Body)
		return r
	}
	if r := get(); r == nil || r.StatusCode != http.StatusOK {
		t.Fatalf("before the stop: %+v", r)
	}
	<-came
	stopped := make(chan error, 1)
	go func() { stopped <- h.Stop(log, context.Background()) }()
	meanwhile()
	put, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	return put
}

// TestDrain_LetsRequestsFinish: a creation that the kernel completes during the shutdown succeeds.
func TestDrain_LetsRequestsFinish(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	put := stopping(t, f, func() {
		time.Sleep(20 * time.Millisecond)
		close(f.manager.block)
	})
	if put.StatusCode != http.StatusCreated { // a canceled request has another status
		t.Errorf("status %d", put.StatusCode)
	}
}

// TestDrain_CanceledRequest_GetsRetryableError: a request that would take longer gets an error reply instead of a reset connection.
func TestDrain_CanceledRequest_GetsRetryableError(t *testing.T) {
	t.Parallel()
	put := stopping(t, newFixture(t), func() {})
	if put.StatusCode != http.StatusServiceUnavailable || put.Header.Get("Retry-After") == "" {
		t.Errorf("status %d, Retry-After %q", put.StatusCode, put.Header.Get("Retry-After"))
	}
}

// The agent stops while a request is running. The request has one second, then it is canceled, and half a second later its connection is closed. Streams of
// changes are canceled at once.
func TestDrain_IsBounded(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		path       string
		handle     func(ctx context.Context, d *drain, never <-chan struct{})
		least, max time.Duration // until the server has stopped; it polls its connections
		status     int           // of the request, 0 without a reply; a real stream has already sent its status
	}{
		"idle": {"", nil, 0, 0, 0},
		"ends in time": {"/", func(_ context.Context, d *drain, _ <-chan struct{}) {
			<-d.begun.Done()
			time.Sleep(800 * time.Millisecond)
		}, 800 * time.Millisecond, time.Second, 200},
		"waits for the kernel": {"/", func(ctx context.Context, _ *drain, _ <-chan struct{}) { <-ctx.Done() }, time.Second, 1100 * time.Millisecond, 503},
		"detects the end late": {"/", func(ctx context.Context, _ *drain, _ <-chan struct{}) {
			<-ctx.Done()
			time.Sleep(300 * time.Millisecond)
		}, 1300 * time.Millisecond, 1500 * time.Millisecond, 503},
		"does not detect the end": {"/", func(_ context.Context, _ *drain, never <-chan struct{}) { <-never }, 1500 * time.Millisecond, 1500 * time.Millisecond, 0},
		"stream":                  {"/statedb/changes/mtus", func(ctx context.Context, _ *drain, _ <-chan struct{}) { <-ctx.Done() }, 0, 100 * time.Millisecond, 500},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				never := make(chan struct{})
				defer close(never)
				d := newDrain()
				server := &http.Server{Handler: d.rejectNew(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					c.handle(r.Context(), d, never)
					if r.Context().Err() != nil {
						fail(w, http.StatusInternalServerError, r.Context().Err())
					}
				}))}
				l := pipenet.Listen("waggle.sock")
				go func() { _ = server.Serve(l) }()
				status := make(chan int, 1)
				if c.path != "" {
					go func() { status <- get(t, l, c.path) }()
				} else {
					status <- 0
				}
				time.Sleep(time.Minute)
				began := time.Now()
				if err := d.stop(server); err != nil {
					t.Error(err)
				}
				if took := time.Since(began); took < c.least || took > c.max {
					t.Errorf("stopped after %v, want %v to %v", took, c.least, c.max)
				}
				if got := <-status; got != c.status {
					t.Errorf("status %d, want %d", got, c.status)
				}
			})
		})
	}
}

// get sends a request and returns the status of the reply, 0 without one.
func get(t *testing.T, l *pipenet.Listener, path string) int {
	conn, err := l.Dial(t.Context())
	if err != nil {
		t.Error(err)
		return 0
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "GET "+path+" HTTP/1.0\r\n\r\n"); err != nil {
		t.Error(err)
		return 0
	}
	r, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0
	}
	_, _ = io.Copy(io.Discard, r.Body)
	return r.StatusCode
}

// TestDrain_RejectsNewRequests sends requests on connections that were opened before the shutdown.
func TestDrain_RejectsNewRequests(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	d := newDrain()
	f.handler = d.rejectNew(f.handler)
	f.expect(f.request("GET", "/v1/endpoint/7/log", ""), http.StatusOK, "[...")
	d.begin()
	r := f.request("PUT", "/v1/endpoint/0", "{}")
	if r.Header.Get("Retry-After") != retryAfter {
		t.Errorf("headers %v", r.Header)
	}
	f.expect(r, http.StatusServiceUnavailable, `"the agent is stopping: retry in a few seconds"`)
}

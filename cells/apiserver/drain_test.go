package apiserver

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"net/http"
	"testing"
	"time"

	"github.com/cilium/hive/hivetest"
)

// stopping is an agent that stops while a PUT waits in it, and the answer of the PUT.
func stopping(t *testing.T, f *fixture, meanwhile func()) (put *http.Response, took time.Duration) {
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
	idle := dial(t, socket) // a connection that is kept open
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
	began := time.Now()
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
	return put, time.Since(began)
}

// TestDrain_LetsRequestsFinish: a creation that the kernel completes while the agent stops succeeds.
func TestDrain_LetsRequestsFinish(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	put, took := stopping(t, f, func() {
		time.Sleep(20 * time.Millisecond)
		close(f.manager.block)
	})
	if put.StatusCode != http.StatusCreated || took > finishTimeout+2*cutTimeout { // one that was cut short has another status
		t.Errorf("status %d after %s", put.StatusCode, took)
	}
}

// TestDrain_SaysThatWhatWasCutCanBeRepeated: one that would wait for longer ends with a clear answer, and not with a reset.
func TestDrain_SaysThatWhatWasCutCanBeRepeated(t *testing.T) {
	t.Parallel()
	put, took := stopping(t, newFixture(t), func() {})
	if put.StatusCode != http.StatusServiceUnavailable || put.Header.Get("Retry-After") == "" || took > finishTimeout+2*cutTimeout {
		t.Errorf("status %d, Retry-After %q after %s", put.StatusCode, put.Header.Get("Retry-After"), took)
	}
}

// TestDrain_RefusesNewRequests over connections that were open before.
func TestDrain_RefusesNewRequests(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	d := newDrain()
	f.handler = d.refuse(f.handler)
	f.expect(f.request("GET", "/v1/endpoint/7/log", ""), http.StatusOK, "[...")
	d.begin()
	r := f.request("PUT", "/v1/endpoint/0", "{}")
	if r.Header.Get("Retry-After") != retryAfter {
		t.Errorf("headers %v", r.Header)
	}
	f.expect(r, http.StatusServiceUnavailable, `"the agent stops: call again, the next one is there in a moment"`)
}

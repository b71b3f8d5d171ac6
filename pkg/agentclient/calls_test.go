package agentclient

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"github.com/waggle-net/waggle/api/v1/models"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// agent serves a handler on a socket and returns a client for it.
func agent(t *testing.T, handler http.HandlerFunc) *Client {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "a.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: handler}
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(l) }()
	t.Cleanup(func() { server.Close(); <-done })
	return New(socket)
}

func TestErrors_NameWhatToCheck(t *testing.T) {
	t.Parallel()
	missing := New(filepath.Join(t.TempDir(), "none.sock"))
	_, err := missing.PodConfig(t.Context())
	if !errors.Is(err, ErrUnreachable) || !strings.Contains(err.Error(), missing.Socket()) || !strings.Contains(err.Error(), "check that waggle-agent runs") {
		t.Errorf("no socket: %v", err)
	}
	stale := filepath.Join(t.TempDir(), "stale.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: stale, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	if err := New(stale).ReleaseIP(t.Context(), "10.0.0.1", ""); !errors.Is(err, ErrUnreachable) || !strings.Contains(err.Error(), "is stale") {
		t.Errorf("a stale socket: %v", err)
	}
	for body, want := range map[string]string{
		`"range is full"`:                   "allocate an address: range is full (status 502)",
		`{"code":502,"message":"no bread"}`: "allocate an address: no bread (status 502)",
		``:                                  "allocate an address: the agent answered 502 Bad Gateway",
		"the handler panicked: index\n":     "allocate an address: the handler panicked: index (status 502)",
	} {
		c := agent(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(502); fmt.Fprint(w, body) })
		_, err := c.AllocateIP(t.Context(), "")
		if err == nil || err.Error() != want || Status(err) != 502 {
			t.Errorf("body %q: got %v, want %s", body, err, want)
		}
	}
}

func TestCalls_SendExpectedRequest(t *testing.T) {
	t.Parallel()
	var seen atomic.Value
	c := agent(t, func(w http.ResponseWriter, r *http.Request) {
		body := make([]byte, r.ContentLength)
		_, _ = r.Body.Read(body)
		seen.Store(fmt.Sprint(r.Method, " ", r.RequestURI, " ", r.Header.Get("expiration"), r.Header.Get("Prefer"), r.Header.Get("Content-Type"), string(body)))
		w.WriteHeader(201)
	})
	for want, call := range map[string]func() error{
		"GET /v1/config return=minimal":           func() error { _, err := c.PodConfig(t.Context()); return err },
		"GET /v1/healthz ":                        func() error { _, err := c.Status(t.Context(), false); return err },
		"GET /v1/endpoint ":                       func() error { _, err := c.Attachments(t.Context()); return err },
		"POST /v1/ipam true":                      func() error { _, err := c.AllocateIP(t.Context(), ""); return err },
		"POST /v1/ipam?owner=a%2Fb%0D%0Ax+y true": func() error { _, err := c.AllocateIP(t.Context(), "a/b\r\nx y"); return err },
		"DELETE /v1/ipam/fd00::1?pool=p ":         func() error { return c.ReleaseIP(t.Context(), "fd00::1", "p") },
		"DELETE /v1/endpoint/a%2Fb%3Fc:eth0%0A ":  func() error { return c.DeleteEndpoint(t.Context(), "a/b?c:eth0\n") },
		"GET /v1/endpoint/x:y/healthz ":           func() error { _, err := c.EndpointHealth(t.Context(), "x:y"); return err },
		`PUT /v1/endpoint/cilium-local:0 application/json{"container-id":"c"}`: func() error {
			return c.CreateEndpoint(t.Context(), models.EndpointChangeRequest{ContainerID: "c"})
		},
	} {
		err := call()
		got := seen.Load().(string)
		if strings.HasPrefix(want, "PUT") { // the body also has the fields without omitempty
			got, want = got[:strings.IndexByte(got, '{')], want[:strings.IndexByte(want, '{')]
		}
		if err != nil || got != want {
			t.Errorf("got %q, error %v; want %q", got, err, want)
		}
	}
}

// FuzzMessage passes arbitrary error bodies.
func FuzzMessage(f *testing.F) {
	f.Add([]byte(`"x"`))
	f.Add([]byte(`{"code":1,"message":"m"}`))
	f.Add([]byte("\"\xfe\xfe\xfe\xfe\""))
	f.Fuzz(func(t *testing.T, body []byte) {
		// A byte that is not valid UTF-8 becomes the replacement character of three bytes; no other input grows more.
		if got := message(body); len(got) > 3*len(body) {
			t.Fatalf("%d bytes became %d", len(body), len(got))
		}
	})
}

package client

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
	c := New(socket)
	t.Cleanup(func() { c.Close(); server.Close(); <-done })
	return c
}

func TestErrors_NameWhatToCheck(t *testing.T) {
	t.Parallel()
	missing := New(filepath.Join(t.TempDir(), "none.sock"))
	_, err := missing.Config(t.Context())
	if !errors.Is(err, ErrUnreachable) || !strings.Contains(err.Error(), missing.Socket()) {
		t.Errorf("no socket: %v", err)
	}
	c := agent(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(404); fmt.Fprint(w, `"no such thing"`) })
	if _, err := c.Endpoint(t.Context(), "7"); !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "no such thing") {
		t.Errorf("an answer with status 404: %v", err)
	}
}

func TestRequests_EscapeNames(t *testing.T) {
	t.Parallel()
	var seen atomic.Value
	c := agent(t, func(w http.ResponseWriter, r *http.Request) {
		seen.Store(r.Method + " " + r.RequestURI)
		fmt.Fprint(w, "{}")
	})
	_, _ = c.Endpoint(t.Context(), "pod-name:a/b")
	if got := seen.Load(); got != "GET /v1/endpoint/pod-name:a%2Fb" {
		t.Errorf("a name with a slash: %v", got)
	}
}

func TestSocketPath(t *testing.T) {
	for _, tc := range []struct{ typed, env, want string }{
		{"", "", DefaultSocket}, {"unix:///a", "/b", "/a"}, {"/a", "", "/a"}, {"", "/b", "/b"}, {"", "unix:///b", "/b"},
	} {
		t.Setenv(SocketEnv, tc.env)
		if got := SocketPath(tc.typed); got != tc.want {
			t.Errorf("%+v: %s", tc, got)
		}
	}
}

package agentclient

import (
	"context"
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/waggle-net/waggle/api/v1/models"
	"github.com/waggle-net/waggle/api/v1/server"
)

// calls has every call of the API, by its operation.
func calls(c *Client) map[string]func(context.Context) error {
	result := func(_ any, err error) error { return err }
	return map[string]func(context.Context) error{
		"GET /v1/cluster/nodes": func(ctx context.Context) error { return result(c.Nodes(ctx)) },
		"GET /v1/config":        func(ctx context.Context) error { return errors.Join(result(c.Config(ctx)), result(c.PodConfig(ctx))) },
		"GET /v1/endpoint": func(ctx context.Context) error {
			return errors.Join(result(c.Endpoints(ctx)), result(c.Attachments(ctx)))
		},
		"GET /v1/endpoint/{id}":         func(ctx context.Context) error { return result(c.Endpoint(ctx, "a/b")) },
		"GET /v1/endpoint/{id}/healthz": func(ctx context.Context) error { return result(c.EndpointHealth(ctx, "a/b")) },
		"GET /v1/endpoint/{id}/labels":  func(ctx context.Context) error { return result(c.EndpointLabels(ctx, "a/b")) },
		"GET /v1/endpoint/{id}/log":     func(ctx context.Context) error { return result(c.EndpointLog(ctx, "a/b")) },
		"PUT /v1/endpoint/{id}":         func(ctx context.Context) error { return c.CreateEndpoint(ctx, models.EndpointChangeRequest{}) },
		"DELETE /v1/endpoint/{id}":      func(ctx context.Context) error { return c.DeleteEndpoint(ctx, "a/b") },
		"GET /v1/healthz": func(ctx context.Context) error {
			return errors.Join(result(c.Status(ctx, true)), result(c.Status(ctx, false)))
		},
		"GET /v1/identity/{id}": func(ctx context.Context) error { return result(c.Identity(ctx, "7")) },
		"GET /v1/ip": func(ctx context.Context) error {
			return errors.Join(result(c.IPs(ctx, "")), result(c.IPs(ctx, "fd00::/8")))
		},
		"POST /v1/ipam":        func(ctx context.Context) error { return result(c.AllocateIP(ctx, "a/b")) },
		"DELETE /v1/ipam/{ip}": func(ctx context.Context) error { return c.ReleaseIP(ctx, "fd00::1", "p") },
		"GET /v1/map/{name}":   func(ctx context.Context) error { return result(c.Map(ctx, "a/b")) },
		"GET /v1/node/ids":     func(ctx context.Context) error { return result(c.NodeIDs(ctx)) },
		"GET /v1/policy/explain": func(ctx context.Context) error {
			return result(c.PolicyExplain(ctx, models.GetPolicyExplainParams{From: "a/b", To: "10.0.0.1", Port: "80/TCP"}))
		},
		"GET /v1/policy/selectors": func(ctx context.Context) error { return result(c.PolicySelectors(ctx)) },
		"POST /v1/policy/what-if":  func(ctx context.Context) error { return result(c.PolicyWhatIf(ctx, models.PolicyWhatIf{})) },
		"GET /v1/service":          func(ctx context.Context) error { return result(c.Services(ctx)) },
		"GET /v1/service/{id}":     func(ctx context.Context) error { return result(c.Service(ctx, 7)) },
	}
}

// TestCalls_AreOperationsOfTheAPI sends each call to the generated server, which checks the parameters.
func TestCalls_AreOperationsOfTheAPI(t *testing.T) {
	t.Parallel()
	var seen atomic.Value
	record := func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			seen.Store(r.Pattern)
			fmt.Fprint(w, "null")
		})
	}
	routes := server.HandlerWithOptions(nil, server.StdHTTPServerOptions{BaseURL: "/v1", Middlewares: []server.MiddlewareFunc{record}})
	c := agent(t, routes.ServeHTTP)
	for operation, call := range calls(c) {
		seen.Store("")
		if err := call(t.Context()); err != nil || seen.Load() != operation {
			t.Errorf("%s: the server had %q, error %v", operation, seen.Load(), err)
		}
	}
}

func TestRequests_EscapeNames(t *testing.T) {
	t.Parallel()
	var seen atomic.Value
	c := agent(t, func(w http.ResponseWriter, r *http.Request) {
		seen.Store(r.Method + " " + r.RequestURI + " " + r.Header.Get("brief"))
		if strings.HasPrefix(r.RequestURI, "/statedb/") {
			fmt.Fprint(w, `{"a/b":[]}`)
			return
		}
		fmt.Fprint(w, "null")
	})
	result := func(_ any, err error) error { return err }
	for want, call := range map[string]func() error{
		"GET /v1/endpoint/pod-name:a%2Fb ":    func() error { return result(c.Endpoint(t.Context(), "pod-name:a/b")) },
		"GET /v1/map/a%2F..%3F%0D%0A ":        func() error { return result(c.Map(t.Context(), "a/..?\r\n")) },
		"GET /v1/ip ":                         func() error { return result(c.IPs(t.Context(), "")) },
		"GET /v1/ip?cidr=10.0.0.0%2F8%0D%0A ": func() error { return result(c.IPs(t.Context(), "10.0.0.0/8\r\n")) },
		"GET /v1/healthz true":                func() error { return result(c.Status(t.Context(), true)) },
		"GET /v1beta/status ":                 func() error { return result(c.NodeHealth(t.Context(), false)) },
		"PUT /v1beta/status/probe ":           func() error { return result(c.NodeHealth(t.Context(), true)) },
		"GET /statedb/dump/a%2Fb ":            func() error { return result(c.RawRows(t.Context(), "a/b")) },
		"GET /v1/policy/explain?from=a%2Fb&port=80%2FTCP&to=x%0Ay ": func() error {
			return result(c.PolicyExplain(t.Context(), models.GetPolicyExplainParams{From: "a/b", To: "x\ny", Port: "80/TCP"}))
		},
	} {
		if err := call(); err != nil || seen.Load() != want {
			t.Errorf("got %q, error %v; want %q", seen.Load(), err, want)
		}
	}
}

func TestErrors_StatusNotFoundIsErrNotFound(t *testing.T) {
	t.Parallel()
	c := agent(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(404); fmt.Fprint(w, `"no such thing"`) })
	if _, err := c.Endpoint(t.Context(), "7"); !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "no such thing") {
		t.Errorf("an answer with status 404: %v", err)
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

// TestClient_DoesNotImportHTTP: the CNI plugin links the package.
func TestClient_DoesNotImportHTTP(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, spec := range file.Imports {
			if spec.Path.Value == `"net/http"` {
				t.Errorf("%s imports net/http", name)
			}
		}
	}
}

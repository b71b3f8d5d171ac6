package kubeapi_test

import (
	"context"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi/kubetest"
)

// heard holds the received part of a stream.
type heard struct {
	mu   sync.Mutex
	text strings.Builder
	end  error
}

func (h *heard) follow(body io.Reader) {
	p := make([]byte, 4096)
	for {
		n, err := body.Read(p)
		h.mu.Lock()
		h.text.Write(p[:n])
		h.end = err
		h.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (h *heard) has(text string) func() bool {
	return func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return strings.Contains(h.text.String(), text)
	}
}

func endpoint(name string) *ciliumv2.CiliumEndpoint {
	return &ciliumv2.CiliumEndpoint{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name}}
}

// open starts a stream that collects events.
func open(t *testing.T, ctx context.Context, client *kubeapi.Client) (io.ReadCloser, *heard) {
	t.Helper()
	body, err := client.Stream(kubeapi.Gathering(ctx, 100*time.Millisecond, nil), kubeapi.CiliumEndpoints, "", metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	h := &heard{}
	background(t, func(context.Context) { h.follow(body) })
	t.Cleanup(func() { _ = body.Close() })
	return body, h
}

// TestStream_OverTLS: a stream that collects events receives them also with TLS, while other requests run.
func TestStream_OverTLS(t *testing.T) {
	t.Parallel()
	virtual(t, func(t *testing.T, a, _ *kubetest.Server, client *kubeapi.Client) {
		_, h := open(t, t.Context(), client)
		for _, name := range []string{"one", "two", "three"} {
			a.Put(endpoint(name))
			if took := soon(h.has(name)); took > 200*time.Millisecond {
				t.Errorf("%s came after %v", name, took)
			}
		}
		if err := get(t, client, "one"); err == nil {
			t.Error("there is a node")
		}
	})
}

// TestStream_ClosedWithSharedConnection: the pings of the shared connection detect a host without power, and the stream is closed with that connection. Its own
// connection would not detect it, because no packet arrives.
func TestStream_ClosedWithSharedConnection(t *testing.T) {
	t.Parallel()
	virtual(t, func(t *testing.T, a, _ *kubetest.Server, client *kubeapi.Client) {
		store := reflector(t, client)
		a.Put(node("one"))
		soon(holds(store, "one"))
		_, h := open(t, t.Context(), client)
		a.Freeze()
		ended := func() bool {
			h.mu.Lock()
			defer h.mu.Unlock()
			return h.end != nil
		}
		if took := soon(ended); took > 16*time.Second || h.end != io.ErrUnexpectedEOF {
			t.Errorf("it ended after %v: %v", took, h.end)
		}
	})
}

// TestStream_EndsWithContextOfCaller: a stream ends immediately with the caller's context, also while events collect.
func TestStream_EndsWithContextOfCaller(t *testing.T) {
	t.Parallel()
	virtual(t, func(t *testing.T, a, _ *kubetest.Server, client *kubeapi.Client) {
		ctx, cancel := context.WithCancel(t.Context())
		_, h := open(t, ctx, client)
		a.Put(endpoint("one"))
		soon(h.has("one"))
		cancel()
		if took := soon(func() bool { h.mu.Lock(); defer h.mu.Unlock(); return h.end != nil }); took > time.Millisecond {
			t.Errorf("it ended after %v", took)
		}
	})
}

package kubeapi_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi/kubetest"
	"github.com/waggle-net/waggle/pkg/tables/apiservers"
)

func node(name string) *corev1.Node { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}} }

// pair returns two servers with TLS and the same objects, and a client of both.
func pair(t *testing.T) (a, b *kubetest.Server, client *kubeapi.Client) {
	t.Helper()
	authority := kubetest.NewAuthority(t)
	a = kubetest.New(t, kubetest.WithTLS(authority))
	b = a.Replica(t, kubetest.WithTLS(authority))
	return a, b, newClient(t, a.Config(), a.URL(), b.URL())
}

func newClient(t *testing.T, config *rest.Config, servers ...string) *kubeapi.Client {
	t.Helper()
	client, err := kubeapi.New(config, kubeapi.DefaultConnection, servers...)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// background runs f until the test ends.
func background(t *testing.T, f func(context.Context)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(ctx)
	}()
	t.Cleanup(func() { cancel(); <-done })
}

func reflector(t *testing.T, client *kubeapi.Client) cache.Store {
	t.Helper()
	store := cache.NewStore(cache.MetaNamespaceKeyFunc)
	r := cache.NewReflectorWithOptions(client.ListWatch(kubeapi.Nodes, "", nil), &corev1.Node{}, store, cache.ReflectorOptions{
		Backoff: &wait.Backoff{Duration: 10 * time.Millisecond, Cap: 100 * time.Millisecond, Steps: 10, Factor: 2}})
	background(t, r.RunWithContext)
	return store
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	timeout := time.After(time.Minute)
	for !condition() {
		select {
		case <-tick.C:
		case <-timeout:
			t.Fatal("waited in vain: " + what)
		}
	}
}

func holds(store cache.Store, name string) func() bool {
	return func() bool { _, found, _ := store.GetByKey(name); return found }
}

func rows(client *kubeapi.Client) map[string]apiservers.Server {
	out := map[string]apiservers.Server{}
	all, _ := client.Servers()
	for _, row := range all {
		out[row.Server] = row
	}
	return out
}

func get(t *testing.T, client *kubeapi.Client, name string) error {
	t.Helper()
	return client.Get(t.Context(), kubeapi.Nodes, "", name, &corev1.Node{})
}

func TestFailover_MidWatch(t *testing.T) {
	t.Parallel()
	a, b, client := pair(t)
	a.Put(node("one"))
	store := reflector(t, client)
	eventually(t, "the first list", holds(store, "one"))

	a.Stop()
	a.Put(node("two"))
	eventually(t, "a change seen through the other server", holds(store, "two"))
	got := rows(client)
	if row := got[a.URL()]; row.Active || row.Reachable != apiservers.No || row.Error == "" || row.Since.IsZero() {
		t.Errorf("the stopped server is %+v", row)
	}
	if row := got[b.URL()]; !row.Active || row.Reachable != apiservers.Yes || row.Error != "" {
		t.Errorf("the other server is %+v", row)
	}

	a.Start(t)
	if err := get(t, client, "one"); err != nil {
		t.Error(err)
	}
	if !rows(client)[b.URL()].Active {
		t.Error("the server that works was left for the one that came back")
	}

	b.Stop()
	eventually(t, "the way back", func() bool { return rows(client)[a.URL()].Active })
	b.Put(node("three"))
	eventually(t, "a change seen through the first server", holds(store, "three"))
}

func TestFailover_AllDownThenBack(t *testing.T) {
	t.Parallel()
	a, b, client := pair(t)
	store := reflector(t, client)
	background(t, func(ctx context.Context) { _ = client.Run(ctx) })
	eventually(t, "the first answer", func() bool { return rows(client)[a.URL()].Reachable == apiservers.Yes })
	a.Stop()
	b.Stop()
	err := get(t, client, "one")
	if err == nil || !strings.Contains(err.Error(), "get nodes one: the API server does not answer: ") ||
		!strings.Contains(err.Error(), a.URL()) || !strings.Contains(err.Error(), b.URL()) {
		t.Errorf("with no server: %v", err)
	}
	b.Put(node("one"))
	b.Start(t)
	eventually(t, "the list after the outage", holds(store, "one"))
	eventually(t, "the row after the outage", func() bool {
		row := rows(client)[b.URL()]
		return row.Active && row.Reachable == apiservers.Yes && row.Error == ""
	})
}

func TestFailover_CutsTheWatchesOfTheOldServer(t *testing.T) {
	t.Parallel()
	a, b, client := pair(t)
	w, err := client.Watch(t.Context(), kubeapi.Nodes, "", metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	a.Put(node("one"))
	if e := <-w.ResultChan(); e.Type != "ADDED" {
		t.Fatalf("the watch begins with %+v", e)
	}
	a.Fault(func(*http.Request) (int, string) { return http.StatusBadGateway, "<html>no server is available" })
	if err := get(t, client, "one"); err != nil {
		t.Errorf("a read was not sent to the next server: %v", err)
	}
	if e, open := <-w.ResultChan(); open {
		t.Errorf("the watch of the old server still delivers %+v", e)
	}
	if n := len(b.Requests()); n != 1 {
		t.Errorf("the next server has seen %d requests", n)
	}
	if row := rows(client)[a.URL()]; !strings.Contains(row.Error, "not an API server") || row.Reachable != apiservers.No {
		t.Errorf("the old server is %+v", row)
	}
}

func TestFailover_ErrorReplyDoesNotSwitch(t *testing.T) {
	t.Parallel()
	a, b, client := pair(t)
	a.Fault(func(*http.Request) (int, string) { return http.StatusGatewayTimeout, "" })
	if err := get(t, client, "one"); err == nil {
		t.Error("a time-out was hidden")
	}
	if !rows(client)[a.URL()].Active || len(b.Requests()) > 0 {
		t.Error("one request that took too long moved the agent to another server")
	}
}

func TestRun_ServerNotReady_Switches(t *testing.T) {
	t.Parallel()
	a, b, client := pair(t)
	a.Fault(func(r *http.Request) (int, string) {
		if r.URL.Path == "/readyz" {
			return http.StatusInternalServerError, "[+]ping ok\n[-]etcd\x1b[2J failed: reason withheld\nreadyz check failed\n"
		}
		return http.StatusInternalServerError, ""
	})
	background(t, func(ctx context.Context) { _ = client.Run(ctx) })
	eventually(t, "the server that is ready", func() bool {
		row := rows(client)[b.URL()]
		return row.Active && row.Reachable == apiservers.Yes
	})
	if row := rows(client)[a.URL()]; row.Error != "not ready: 500 Internal Server Error, failed: etcd\\x1b[2J" || row.Reachable != apiservers.Yes {
		t.Errorf("the server that is not ready: %+v", row)
	}
}

func TestDoubt(t *testing.T) {
	t.Parallel()
	a, _, client := pair(t)
	drain := func(w watch.Interface) {
		for range w.ResultChan() {
		}
	}
	open := func(options metav1.ListOptions) watch.Interface {
		w, err := client.Watch(t.Context(), kubeapi.Nodes, "", options)
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	stopped := open(metav1.ListOptions{})
	stopped.Stop()
	drain(stopped)
	second := int64(1)
	drain(open(metav1.ListOptions{TimeoutSeconds: &second}))
	if client.Doubted() {
		t.Error("a watch that its reader or the server ended in order makes the server suspect")
	}
	broken := open(metav1.ListOptions{})
	a.Stop()
	drain(broken)
	if !client.Doubted() {
		t.Error("a watch that broke does not make the server suspect")
	}
}

func TestFailover_WritesAreNotSentTwice(t *testing.T) {
	t.Parallel()
	a, b, client := pair(t)
	a.Fault(func(r *http.Request) (int, string) {
		if r.Method == http.MethodPost {
			panic(http.ErrAbortHandler) // the connection breaks after the request was read
		}
		return 0, ""
	})
	if err := client.Create(t.Context(), kubeapi.Nodes, "", node("one"), nil); err == nil {
		t.Error("a request of unknown outcome succeeded")
	}
	if n := len(b.Requests()); n != 0 {
		t.Errorf("the other server was sent %d requests", n)
	}
	if err := client.Create(t.Context(), kubeapi.Nodes, "", node("one"), nil); err != nil {
		t.Errorf("the next attempt goes to the other server: %v", err)
	}
	b.Stop()
	a.Fault(nil)
	fresh := newClient(t, a.Config(), b.URL(), a.URL()) // without an existing connection that could break instead
	if err := fresh.Create(t.Context(), kubeapi.Nodes, "", node("two"), nil); err != nil {
		t.Errorf("a request that never left is sent elsewhere: %v", err)
	}
}

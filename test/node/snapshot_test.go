package node_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/test/nodekit"
)

// facts returns all state of the agent about pods, in tables and in the kernel, one line each.
func (n kubeNode) facts(t *testing.T) (lines []string) {
	t.Helper()
	questions := [][]string{{"map", "get", "ipcache"}}
	for _, table := range []string{"endpoint-identities", "identities", "ipcache", "cilium-endpoints", "cilium-identities", "k8s-pods", "k8s-namespaces", "k8s-nodes"} {
		questions = append(questions, []string{"db", "show", table})
	}
	for _, question := range questions {
		out, err := n.Waggle(t.Context(), question...)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(out) {
			lines = append(lines, question[2]+": "+strings.Join(strings.Fields(line), " "))
		}
	}
	return lines
}

// settledFacts waits until two consecutive scans return the same facts: the agent's own objects return to it through the server.
func (n kubeNode) settledFacts(t *testing.T) (lines []string) {
	t.Helper()
	eventually(t, func() error {
		first := n.facts(t)
		time.Sleep(300 * time.Millisecond)
		if lines = n.facts(t); !slices.Equal(first, lines) {
			return fmt.Errorf("the facts do not settle:\n%w", nodekit.Changes(first, lines))
		}
		return nil
	})
	return lines
}

// allFrom waits until every table of Kubernetes objects is in one state.
func (n kubeNode) allFrom(t *testing.T, state string) {
	t.Helper()
	eventually(t, func() error {
		out, err := n.Waggle(t.Context(), "db", "show", "sources", "-o", "json")
		if err != nil {
			return err
		}
		var rows []struct{ Table, State string }
		if err := json.Unmarshal([]byte(out), &rows); err != nil {
			return err
		}
		if len(rows) == 0 {
			return errors.New("there are no sources")
		}
		for _, row := range rows {
			if row.State != state {
				return fmt.Errorf("%s is %s, want %s", row.Table, row.State, state)
			}
		}
		return nil
	})
}

// An agent that starts with the copy on disk removes nothing and changes no identity: in the kernel, which is read and used all the time, in its tables, and,
// when the API server is available again, on the server.
func TestPrivilegedSnapshot_RemovesNothing(t *testing.T) {
	t.Parallel()
	n := startKubeNode(t, noProvisional) // except for the pod that is added while no API server replies
	a := n.startPod(t, "a", map[string]string{"app": "a"})
	b := n.startPod(t, "b", map[string]string{"app": "b"})
	n.putPod("c", map[string]string{"app": "c"})
	n.awaitRow(t, "k8s-pods", "default/c")
	n.server.Put(&ciliumv2.CiliumEndpoint{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "elsewhere", UID: "e"},
		Status: ciliumv2.EndpointStatus{ID: 7}})
	n.awaitRow(t, "cilium-endpoints", "elsewhere")
	first, second := n.identityOfCluster(t, a), n.identityOfCluster(t, b)
	for name, number := range map[string]uint32{"a": first.Identity, "b": second.Identity} {
		eventually(t, func() error {
			rows, err := n.Waggle(t.Context(), "db", "show", "cilium-endpoints")
			known := slices.ContainsFunc(strings.Split(rows, "\n"), func(row string) bool {
				fields := strings.Fields(row)
				return len(fields) > 0 && fields[0] == "default/"+name && slices.Contains(fields, fmt.Sprint(number))
			})
			if got := n.published(name); !known || got != int64(number) {
				return fmt.Errorf("%s has %d, is published with %d, and is not known with it (%w):\n%s", name, number, got, err, rows)
			}
			return nil
		})
	}
	o, stop := n.observe(t, first.EndpointID, a, b.Addr(true))
	before := n.settledFacts(t)

	if err := n.StopAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.server.Stop()
	if err := n.StartAgent(); err != nil {
		t.Fatal(err)
	}
	waitReady(t, n.Node)
	n.allFrom(t, "snapshot")
	c := addPod(t, n.Node, "c") // all reconcilers see the pod
	if got := n.identityOf(t, c); got.Labels["k8s:app"] != "c" || got.Source != "provisional" {
		t.Errorf("with the labels of the copy the pod has %+v", got)
	}
	eventually(t, func() (err error) { // without an API server, lost facts would not return
		after := n.facts(t)
		for _, line := range before {
			if !slices.Contains(after, line) {
				err = errors.Join(err, fmt.Errorf("gone with the copy: %s", line))
			}
		}
		return err
	})

	// Changes of the meantime arrive with the API server.
	n.putPod("a", map[string]string{"app": "a", "tier": "front"})
	n.server.Put(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "new"}})
	// The labels arrive after the agent knows that the server is available: until then the agent correctly does not wait for an identity of the cluster.
	release := make(chan struct{})
	letGo := sync.OnceFunc(func() { close(release) })
	t.Cleanup(letGo)
	n.server.Fault(func(r *http.Request) (int, string) {
		if r.URL.Path == "/api/v1/pods" {
			select {
			case <-release:
			case <-r.Context().Done():
			}
		}
		return 0, ""
	})
	if err := n.Do(func() error { n.server.Start(t); return nil }); err != nil {
		t.Fatal(err)
	}
	n.awaitRow(t, "api-servers", "yes")
	letGo()
	n.allFrom(t, "synced")
	n.awaitRow(t, "k8s-namespaces", "new")
	eventually(t, func() error {
		for name, pod := range map[string]*nodekit.Pod{"a": a, "b": b, "c": c} {
			if got := n.identityOf(t, pod); got.Source != "crd" || n.published(name) != int64(got.Identity) {
				return fmt.Errorf("%s is published with %d, and has %+v", name, n.published(name), got)
			}
		}
		if got := n.identityOf(t, a); got.Labels["k8s:tier"] != "front" || o.last() != got.Identity {
			return fmt.Errorf("a has %+v, in the kernel %d", got, o.last())
		}
		return nil
	})
	stop()
	if got := n.identityOf(t, b); got.Identity != second.Identity {
		t.Errorf("b had %d, and has %d", second.Identity, got.Identity)
	}
	if want := []uint32{first.Identity, n.identityOf(t, a).Identity}; !slices.Equal(o.identities, want) {
		t.Errorf("the kernel had %v for a, want %v", o.identities, want)
	}
	for _, r := range n.server.Requests() {
		if r.Verb == "delete" {
			t.Errorf("deleted: %+v", r)
		}
	}
	if !n.server.Get(kubeapi.CiliumEndpoints, "default", "elsewhere", nil) {
		t.Error("the CiliumEndpoint of another node is gone")
	}
}

// Without an API server an agent ends after a while and reports the missing source; but it does not end on a node with running pods.
func TestPrivilegedSyncTimeout_WithoutPods_AgentExits(t *testing.T) {
	t.Parallel()
	n := kubeNode{Node: newNode(t, nodekit.Options{})}
	n.AddAgentArgs("--manifests-dir=", "--k8s-api-server=http://127.0.0.1:9", "--ipv4-range=10.50.0.0/24", "--ipv6-range=fd00:50::/64",
		"--k8s-snapshot=false", "--k8s-sync-timeout=1h")
	if err := n.StartAgent(); err != nil {
		t.Fatal(err)
	}
	for _, format := range [][]string{{"status"}, {"status", "-o", "json"}} {
		eventually(t, func() error {
			status, _ := n.Waggle(t.Context(), format...) // the command exits with 1
			for line := range strings.Lines(status) {
				if strings.Contains(line, "table k8s-nodes: reflectors: the first list of the API server") && strings.Contains(line, "(since 20") {
					return nil
				}
			}
			return fmt.Errorf("the status does not say since when a table is waited for:\n%s", status)
		})
	}
	if err := n.StopAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.AddAgentArgs("--k8s-sync-timeout=5s") // enough for an attempt
	if err := n.StartAgent(); err != nil {
		t.Fatal(err)
	}
	ended := func() bool { return strings.Contains(n.AgentLog(), "--k8s-sync-timeout=5s") }
	eventually(t, func() error {
		if !ended() {
			return errors.New("it goes on")
		}
		return nil
	})
	var exit *exec.ExitError
	if err := n.StopAgent(t.Context()); !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("the agent ended with %v, want status 1", err)
	}
	for _, part := range []string{"wait for the API server", "cilium-endpoints: the first list of the API server", "http://127.0.0.1:9", "connection refused"} {
		if !strings.Contains(n.AgentLog(), part) {
			t.Errorf("the last words do not say %q:\n%s", part, n.AgentLog())
		}
	}
}

// With pods of a previous run the agent keeps running, and reports the missing source.
func TestPrivilegedSyncTimeout_WithPods_AgentKeepsRunning(t *testing.T) {
	t.Parallel()
	n := startKubeNode(t)
	a, b := n.startPod(t, "a", nil), n.startPod(t, "b", nil)
	if err := n.StopAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.server.Stop()
	n.AddAgentArgs("--k8s-snapshot=false", "--k8s-sync-timeout=1s")
	if err := n.StartAgent(); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		status, _ := n.Waggle(t.Context(), "status")
		if !strings.Contains(status, "tables are not complete after 1s") {
			return fmt.Errorf("it is not said that tables are missing:\n%s", status)
		}
		return nil
	})
	if err := nodekit.Ping(a, b.Addr(false), 56); err != nil {
		t.Error(err)
	}
	if err := n.StopAgent(t.Context()); err != nil {
		t.Errorf("the agent had ended: %v", err)
	}
}

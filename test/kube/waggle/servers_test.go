package waggle_test

import (
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/waggle-net/waggle/test/kube"
)

// TestPrivilegedServers causes several failures of API servers, one after the other, under the agent of one node.
func TestPrivilegedServers(t *testing.T) {
	t.Parallel()
	c, n := prepared(t, kube.Options{ClusterCIDR: kube.DualStackCIDR})
	t.Run("Hang", func(t *testing.T) { serverHangs(t, c, n) })
	t.Run("HistoryLost", func(t *testing.T) { historyIsLost(t, c, n) })
	t.Run("FailOver", func(t *testing.T) { failOver(t, c, n) })
}

// serverHangs stops an agent while its API server keeps connections open and does not answer.
func serverHangs(t *testing.T, c *kube.Cluster, n *kube.Node) {
	p := readyAgent(t, n, "--ipam=kubernetes")
	if err := c.RunPod(t.Context(), kube.Pod{Name: "a", Labels: map[string]string{"app": "a"}}); err != nil {
		t.Fatal(err)
	}
	if err := c.HangAPIServer(); err != nil {
		t.Fatal(err)
	}
	newSandbox(t, c, n, "a", n.IPv4)
	stop(t, p)
	p = readyAgent(t, n, "--ipam=kubernetes") // from the snapshot
	stop(t, p)
	if err := c.ResumeAPIServer(); err != nil {
		t.Fatal(err)
	}
}

// historyIsLost compacts the store while the agent is disconnected, so that its watches get 410 Gone, and then deletes objects directly in etcd, as a restore
// of an older backup does.
func historyIsLost(t *testing.T, c *kube.Cluster, n *kube.Node) {
	p := readyAgent(t, n, "--ipam=kubernetes")
	for i := range 15 {
		if err := c.Create(t.Context(), "/api/v1/namespaces", namespace(fmt.Sprintf("lost-%d", i))); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.WaitFor(t.Context(), "the agent to know the namespaces", func() error { return hasRow(t, n, "k8s-namespaces", "lost-14") }); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(c.StopAPIServer(), c.StopControllerManager()); err != nil {
		t.Fatal(err)
	}
	var deleted struct {
		Deleted string
		Header  struct{ Revision string }
	}
	from, to := base64.StdEncoding.EncodeToString([]byte("/registry/namespaces/lost-")), base64.StdEncoding.EncodeToString([]byte("/registry/namespaces/lost."))
	if err := c.Etcd(t.Context(), "/v3/kv/deleterange", fmt.Sprintf(`{"key": %q, "range_end": %q}`, from, to), &deleted); err != nil || deleted.Deleted != "15" {
		t.Fatalf("delete namespaces in etcd: %+v, %v", deleted, err)
	}
	if err := c.Etcd(t.Context(), "/v3/kv/compaction", fmt.Sprintf(`{"revision": %q, "physical": true}`, deleted.Header.Revision), &deleted); err != nil {
		t.Fatal(err)
	}
	before := len(quorumLists(t, c))
	runtimeReturns(t, c, n)
	if err := c.WaitFor(t.Context(), "what is really gone to go", func() error {
		all, err := readRows[struct{ Name string }](t, n, "k8s-namespaces")
		for _, row := range all {
			if strings.HasPrefix(row.Name, "lost-") {
				err = fmt.Errorf("namespace %s is still there", row.Name)
			}
		}
		return err
	}); err != nil {
		t.Error(err)
	}
	if len(quorumLists(t, c)) == before {
		t.Error("the loss of most namespaces was believed without a list by quorum")
	}
	stop(t, p)
}

// failOver configures two API servers with one store for the agent and kills the one in use.
func failOver(t *testing.T, c *kube.Cluster, n *kube.Node) {
	before := len(ofAgents(t, c))
	second, err := c.StartSecondAPIServer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	p := readyAgent(t, n, "--ipam=kubernetes", "--k8s-api-server="+c.URL+","+second)
	if err := c.WaitFor(t.Context(), "the tables to be complete", func() error { return synced(t, n) }); err != nil {
		t.Fatal(err)
	}
	if len(ofAgents(t, c)) == before {
		t.Error("the audit log has no request of waggle-agent")
	}
	if err := c.StopAPIServer(); err != nil {
		t.Fatal(err)
	}
	for _, o := range []struct{ collection, table string }{{"/api/v1/namespaces", "k8s-namespaces"}, {"/apis/cilium.io/v2/ciliumnodes", "cilium-nodes"}} {
		version, kind := "v1", "Namespace"
		if o.table == "cilium-nodes" {
			version, kind = "cilium.io/v2", "CiliumNode"
		}
		if err := c.CreateAt(t.Context(), second, o.collection, map[string]any{"apiVersion": version, "kind": kind,
			"metadata": map[string]any{"name": "after-the-fail-over"}, "spec": map[string]any{}}); err != nil {
			t.Fatal(err)
		}
		if err := c.WaitFor(t.Context(), "the agent to follow the second server", func() error { return hasRow(t, n, o.table, "after-the-fail-over") }); err != nil {
			t.Error(err)
		}
	}
	for _, s := range rows[struct {
		Server string
		Active bool
	}](t, n, "api-servers") {
		if s.Active != (s.Server == second) {
			t.Errorf("in use: %+v", s)
		}
	}
	stop(t, p)
}

// ofAgents returns the audited requests of agents so far.
func ofAgents(t *testing.T, c *kube.Cluster) []kube.AuditEvent {
	t.Helper()
	return c.AuditLog(t, func(e kube.AuditEvent) bool { return strings.HasPrefix(e.UserAgent, "waggle-agent/") })
}

// quorumLists returns the agents' list requests for namespaces so far that read the store instead of the API server's cache.
func quorumLists(t *testing.T, c *kube.Cluster) []kube.AuditEvent {
	t.Helper()
	return slices.DeleteFunc(ofAgents(t, c), func(e kube.AuditEvent) bool {
		return e.Verb != "list" || e.ObjectRef.Resource != "namespaces" || strings.Contains(e.RequestURI, "resourceVersion=")
	})
}

func namespace(name string) map[string]any {
	return map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": name}}
}

func hasRow(t *testing.T, n *kube.Node, table, name string) error {
	all, err := readRows[struct{ Name string }](t, n, table)
	if err != nil {
		return err
	}
	for _, row := range all {
		if row.Name == name {
			return nil
		}
	}
	return fmt.Errorf("table %s has %d rows, but not %s", table, len(all), name)
}

package services_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/waggle-net/waggle/test/kube"
	"github.com/waggle-net/waggle/test/kube/servicechecks"
)

// TestPrivilegedServices_Lifecycle runs the lifecycle of Services on one cluster. After each step it checks the clients that run continuously.
func TestPrivilegedServices_Lifecycle(t *testing.T) {
	w := newWorld(t)
	if err := w.Apply(t.Context(), web); err != nil {
		t.Fatal(err)
	}
	c := newClients(t, w)
	s := newStays(t, w)
	if _, err := c.WaitCounts(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.Until(t, "answers", kube.AnyServer)
	t.Run("beside each other", func(t *testing.T) {
		parallel := func(name string, test func(*testing.T)) {
			t.Run(name, func(t *testing.T) { t.Parallel(); test(t) })
		}
		parallel("all servers are replaced", func(t *testing.T) { c.replaced(t, func() error { return nil }) })
		parallel("traffic policy Local", func(t *testing.T) { servicechecks.Local(t, w.World) })
		parallel("no server", func(t *testing.T) { empty(t, s) })
		parallel("host port", func(t *testing.T) { hostPort(t, w) })
		parallel("a webhook by its address", func(t *testing.T) { servicechecks.Webhook(t, w.World, w.B, "") })
		parallel("names and the API server", func(t *testing.T) { servicechecks.Names(t, w.World) })
		parallel("affinity", func(t *testing.T) { servicechecks.Affinity(t, w.World) })
		parallel("ranges of clients", func(t *testing.T) { ranges(t, s) })
		parallel("external addresses", func(t *testing.T) { external(t, s) })
		parallel("external addresses of a node", func(t *testing.T) { nodeAddress(t, s) })
		parallel("addresses that the load balancer terminates", func(t *testing.T) { proxied(t, s) })
		parallel("annotations", func(t *testing.T) { annotated(t, s) })
		parallel("slices that are used in part or not", func(t *testing.T) { partialSlice(t, s) })
		parallel("a Node that is used in part", func(t *testing.T) { partialNode(t, w) })
		parallel("internal traffic policy Local", func(t *testing.T) { near(t, s) })
		parallel("a server connects to itself", func(t *testing.T) { hairpin(t, s) })
		parallel("a server on the network of its node", func(t *testing.T) { hostNetwork(t, s) })
		parallel("names without an address", func(t *testing.T) { withoutAddress(t, s) })
		parallel("an unready server", func(t *testing.T) { unready(t, s) })
		parallel("a terminating server", func(t *testing.T) { ending(t, s) })
		parallel("masquerade", func(t *testing.T) { masquerade(t, s) })
		parallel("another address of a node", func(t *testing.T) { anotherAddress(t, w) })
	})
	t.Run("another target port", func(t *testing.T) { otherPort(t, c) })
	t.Run("agents are killed while servers are replaced", func(t *testing.T) {
		c.replaced(t, func() error { return errors.Join(kill(t, w.A), kill(t, w.B)) })
	})
	t.Run("the DaemonSet restarts while servers are replaced", func(t *testing.T) {
		c.replaced(t, func() error {
			_, err := w.Kubectl(t.Context(), "rollout", "restart", "-n", "kube-system", "daemonset/waggle")
			return err
		})
	})
	t.Run("the API server is unreachable", func(t *testing.T) { serverUnreachable(t, c) })
	for _, n := range w.Nodes {
		if stacks, err := n.ReadFile("/run/waggle/stall.txt"); err == nil {
			t.Errorf("an agent of %s has said that something hangs:\n%.2000s", n.Name, stacks)
		}
	}
}

// webPods returns the names of the server pods that have not terminated.
func (w *world) webPods(t *testing.T) (names []string, err error) {
	var list struct {
		Items []struct{ Metadata struct{ Name string } }
	}
	err = w.GetObject(t.Context(), "/api/v1/namespaces/default/pods?labelSelector=app%3Dweb", &list)
	for _, pod := range list.Items {
		names = append(names, pod.Metadata.Name)
	}
	return names, err
}

// replaced replaces all servers and requires that no connection fails and that UDP sockets switch to the new servers.
func (c *clients) replaced(t *testing.T, disturb func() error) {
	t.Helper()
	before := c.Until(t, "answers", kube.AnyServer)
	old, err := c.webPods(t)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if _, err := c.Kubectl(t.Context(), "rollout", "restart", "deployment/web"); err != nil {
		t.Fatal(err)
	}
	if err := disturb(); err != nil {
		t.Fatal(err)
	}
	if err := c.WaitFor(t.Context(), "new servers to take the place of the old ones", func() error {
		now, err := c.webPods(t)
		if err == nil && (len(now) != len(old) || slices.ContainsFunc(now, func(name string) bool { return slices.Contains(old, name) })) {
			err = fmt.Errorf("the servers were %v and are %v", old, now)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if err := c.WaitWaggle(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Logf("replaced within %s", time.Since(began).Round(100*time.Millisecond))
	now := c.Until(t, "answers of new servers alone", func(answers []string) error {
		for _, a := range answers {
			if name, _, _ := strings.Cut(a, " "); slices.Contains(old, name) {
				return fmt.Errorf("an old server answers: %v", answers)
			}
		}
		return nil
	})
	c.Lost(t, before, now)
}

// otherPort changes the target port of the UDP Service.
func otherPort(t *testing.T, c *clients) {
	before := c.Until(t, "answers", kube.AnyServer)
	if err := c.MergePatch(t.Context(), "/api/v1/namespaces/default/services/time",
		`{"spec": {"ports": [{"port": 80, "protocol": "UDP", "targetPort": 8081, "nodePort": 30081}]}}`); err != nil {
		t.Fatal(err)
	}
	now := c.UntilOf(t, "udp", "answers of the new port alone", func(answers []string) error {
		for _, a := range answers {
			if strings.Fields(a)[1] != "8081" {
				return fmt.Errorf("the old port answers: %v", answers)
			}
		}
		return nil
	})
	c.Lost(t, before, now)
}

// kill sends SIGKILL to the agent of a node.
func kill(t *testing.T, n *kube.Node) error {
	t.Helper()
	return n.Kill(t.Context(), "/usr/bin/waggle-agent --config-dir")
}

// serverUnreachable stops the API server and kills an agent meanwhile; the new agent starts from its snapshot on disk.
func serverUnreachable(t *testing.T, c *clients) {
	before := c.Until(t, "answers", kube.AnyServer)
	if err := c.StopAPIServer(); err != nil {
		t.Fatal(err)
	}
	c.Until(t, "answers without an API server", kube.AnyServer)
	if err := kill(t, c.B); err != nil {
		t.Fatal(err)
	}
	if err := c.WaitFor(t.Context(), "another agent", func() error {
		out, err := c.B.Waggle(t.Context(), "status")
		if err == nil && !strings.Contains(out, "from the copy on disk of ") {
			err = errors.New(out)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	c.Until(t, "answers without an API server and with a new agent", kube.AnyServer)
	if err := c.StartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.WaitFor(t.Context(), "the agents to be synced", func() error { return errors.Join(synced(t, c.A), synced(t, c.B)) }); err != nil {
		t.Fatal(err)
	}
	c.Lost(t, before, c.Until(t, "answers with the API server", kube.AnyServer))
}

// serviceTables are the tables of objects that define Services.
var serviceTables = []string{"k8s-services", "k8s-endpointslices", "k8s-pods", "k8s-nodes"}

// synced returns nil if all tables of objects are synced with the API server and include serviceTables.
func synced(t *testing.T, n *kube.Node) error {
	out, err := n.Waggle(t.Context(), "db", "show", "sources", "-o", "json")
	if err != nil {
		return err
	}
	var all []struct{ Table, State string }
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		return err
	}
	missing := map[string]bool{}
	for _, name := range serviceTables {
		missing[name] = true
	}
	for _, s := range all {
		if delete(missing, s.Table); s.State != "synced" {
			return fmt.Errorf("table %s of %s is %s", s.Table, n.Name, s.State)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("sources of %s have no tables %v: %s", n.Name, slices.Sorted(maps.Keys(missing)), out)
	}
	return nil
}

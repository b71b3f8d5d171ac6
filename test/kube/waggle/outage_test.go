package waggle_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/waggle-net/waggle/test/kube"
)

// outage returns the duration for which the API server is unreachable.
func outage() time.Duration {
	if soak() {
		return 2 * time.Minute
	}
	return 8 * time.Second
}

// TestPrivilegedOutage_PodsKeepRunning stops the API server while pods run and start, and restarts the agent meanwhile.
func TestPrivilegedOutage_PodsKeepRunning(t *testing.T) {
	t.Parallel()
	c, n := prepared(t, kube.Options{ClusterCIDR: kube.DualStackCIDR})
	flags := []string{"--ipam=kubernetes"}
	p := readyAgent(t, n, flags...)
	if err := n.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "b", "crashing"} {
		pod := kube.Pod{Name: name, Labels: map[string]string{"app": name}}
		if err := c.RunPod(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
	}
	peers, err := c.PodIPs(t.Context(), "b")
	if err != nil {
		t.Fatal(err)
	}
	containers := containersOf(t, n)
	namespaces := rows[struct{ Name string }](t, n, "k8s-namespaces")

	if err := c.StopAPIServer(); err != nil {
		t.Fatal(err)
	}
	over := time.After(outage())

	// The pods' traffic runs during the whole test.
	var talk errgroup.Group
	talking, hush := context.WithCancel(t.Context())
	defer hush()
	for _, peer := range peers {
		talk.Go(func() error { return pingUntil(talking, n, containers["a"], peer) })
	}

	// The agent restarts from its snapshot on disk, without the API server.
	stop(t, p)
	p = readyAgent(t, n, flags...)
	if err := n.WaitStatus(t.Context(), func(status string) bool { return strings.Contains(status, "from the copy on disk of ") }); err != nil {
		t.Errorf("the status does not say that it is a copy: %v", err)
	}

	// A pod that kubelet knows gets a new sandbox, with the labels in the snapshot.
	newSandbox(t, c, n, "crashing", peers[0])
	knowsLabels(t, n, "crashing")

	<-over // the elapsed time is part of the test
	if now := rows[struct{ Name string }](t, n, "k8s-namespaces"); len(now) != len(namespaces) {
		t.Errorf("%d namespaces before the outage, %d in it", len(namespaces), len(now))
	}

	runtimeReturns(t, c, n)
	hush()
	if err := talk.Wait(); err != nil {
		t.Error(err)
	}
	// Without a restart, the scheduler retries its watches only after half a minute.
	if err := errors.Join(c.StopScheduler(), c.StartScheduler(), c.RunPod(t.Context(), kube.Pod{Name: "later"})); err != nil {
		t.Error(err)
	}
	published(t, c, n, "a", "b", "crashing", "later")
	stop(t, p)
}

// runtimeReturns starts the API server again and waits until the agent knows the changes.
func runtimeReturns(t *testing.T, c *kube.Cluster, n *kube.Node) {
	t.Helper()
	if err := c.StartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.Create(t.Context(), "/api/v1/namespaces", map[string]any{"apiVersion": "v1", "kind": "Namespace",
		"metadata": map[string]any{"name": "after-the-outage"}}); err != nil {
		t.Fatal(err)
	}
	if err := c.WaitFor(t.Context(), "the agent to be in step", func() error {
		all, err := readRows[struct{ Name string }](t, n, "k8s-namespaces")
		if err != nil {
			return err
		}
		for _, row := range all {
			if row.Name == "after-the-outage" {
				return synced(t, n)
			}
		}
		return fmt.Errorf("it knows %d namespaces, not the new one", len(all))
	}); err != nil {
		t.Error(err)
	}
}

// newSandbox kills the sandbox of a pod and waits until kubelet has created another one that reaches peer.
func newSandbox(t *testing.T, c *kube.Cluster, n *kube.Node, pod, peer string) {
	t.Helper()
	old := containersOf(t, n)[pod]
	if _, err := n.Run(t.Context(), "sh", "-c", "kill -9 $(cat /run/containerd/io.containerd.runtime.v2.task/k8s.io/"+sandboxOf(t, n, pod)+"/init.pid)"); err != nil {
		t.Fatal(err)
	}
	if err := c.WaitFor(t.Context(), "the pod to have a new sandbox that is attached", func() error {
		now := containersOf(t, n)[pod]
		if now == "" || now == old {
			return fmt.Errorf("its container is %q, was %q", now, old)
		}
		return pingOnce(t.Context(), n, now, peer)
	}); err != nil {
		t.Error(err)
	}
}

type endpointRow struct {
	ID            int
	K8sPodName    string
	K8sUID        string
	IPv4          string
	ContainerID   string
	Labels        map[string]string
	LabelsMissing string
}

// knowsLabels waits until a pod's endpoint has the pod's labels and an identity, possibly a provisional one.
func knowsLabels(t *testing.T, n *kube.Node, pod string) {
	t.Helper()
	sandbox := sandboxOf(t, n, pod)
	for _, e := range rows[endpointRow](t, n, "endpoints") {
		if e.ContainerID != sandbox {
			continue
		}
		if e.Labels["k8s:app"] != pod || e.LabelsMissing != "" {
			t.Errorf("endpoint %d of pod %s has the labels %v, missing: %s", e.ID, pod, e.Labels, e.LabelsMissing)
		}
		for _, i := range rows[struct{ EndpointID, Identity int }](t, n, "endpoint-identities") {
			if i.EndpointID == e.ID && i.Identity != 0 {
				t.Logf("pod %s has the identity %d", pod, i.Identity)
				return
			}
		}
		t.Errorf("endpoint %d of pod %s has no identity", e.ID, pod)
		return
	}
	t.Errorf("pod %s with the sandbox %s has no endpoint", pod, sandbox)
}

// published waits until the CiliumEndpoints match the pods, with their addresses and with identities that are CiliumIdentities.
func published(t *testing.T, c *kube.Cluster, n *kube.Node, pods ...string) {
	t.Helper()
	if err := c.WaitFor(t.Context(), "CiliumEndpoints and identities to be consistent", func() error {
		var eps struct {
			Items []struct {
				Metadata struct{ Name string }
				Status   struct {
					Identity   struct{ ID int }
					Networking struct{ Addressing []struct{ IPv4 string } }
				}
			}
		}
		var ids struct {
			Items []struct {
				Metadata       struct{ Name string }
				SecurityLabels map[string]string `json:"security-labels"`
			}
		}
		if err := errors.Join(c.GetObject(t.Context(), "/apis/cilium.io/v2/namespaces/"+c.Namespace+"/ciliumendpoints", &eps),
			c.GetObject(t.Context(), "/apis/cilium.io/v2/ciliumidentities", &ids)); err != nil {
			return err
		}
		if len(eps.Items) != len(pods) {
			return fmt.Errorf("%d CiliumEndpoints: %+v", len(eps.Items), eps.Items)
		}
		known, labels := map[string]bool{}, map[string]bool{}
		for _, id := range ids.Items {
			known[id.Metadata.Name] = true
			if text := fmt.Sprint(id.SecurityLabels); labels[text] {
				return fmt.Errorf("two identities for %s", text)
			} else {
				labels[text] = true
			}
		}
		for _, ep := range eps.Items {
			ips, err := c.PodIPs(t.Context(), ep.Metadata.Name)
			if err != nil {
				return err
			}
			addresses := ep.Status.Networking.Addressing
			if len(addresses) != 1 || !slices.Contains(ips, addresses[0].IPv4) || !known[strconv.Itoa(ep.Status.Identity.ID)] {
				return fmt.Errorf("CiliumEndpoint %+v; the pod has %v, identities are %v", ep, ips, known)
			}
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// synced waits until all tables of objects are synced with the API server.
func synced(t *testing.T, n *kube.Node) error {
	all, err := readRows[struct{ Table, State string }](t, n, "sources")
	if err != nil {
		return err
	}
	for _, s := range all {
		if s.State != "synced" {
			return fmt.Errorf("table %s is %s", s.Table, s.State)
		}
	}
	return nil
}

// containersOf returns the running containers by pod name. It queries the runtime, because kubectl needs an API server.
func containersOf(t *testing.T, n *kube.Node) map[string]string { return labelled(t, n, "container") }

// sandboxOf returns the sandbox of a pod.
func sandboxOf(t *testing.T, n *kube.Node, pod string) string { return labelled(t, n, "sandbox")[pod] }

func labelled(t *testing.T, n *kube.Node, kind string) map[string]string {
	t.Helper()
	running, err := n.Run(t.Context(), "sh", "-c", "ctr -n k8s.io task list | awk '$3 == \"RUNNING\" {print $1}'")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for id := range strings.FieldsSeq(running) {
		labels, err := n.Run(t.Context(), "ctr", "-n", "k8s.io", "container", "info", id)
		if err != nil {
			continue // it has ended since
		}
		if strings.Contains(labels, `"io.cri-containerd.kind": "`+kind+`"`) {
			_, rest, _ := strings.Cut(labels, `"io.kubernetes.pod.name": "`)
			name, _, _ := strings.Cut(rest, `"`)
			found[name] = id
		}
	}
	return found
}

var execs atomic.Int64 // ids must be unique

func inContainer(n *kube.Node, container string, script string) []string {
	return []string{"ctr", "-n", "k8s.io", "task", "exec", "--exec-id", fmt.Sprint("t", execs.Add(1)), container, "sh", "-c", script}
}

func pingOnce(ctx context.Context, n *kube.Node, container, peer string) error {
	out, err := n.Run(ctx, inContainer(n, container, "ping -c 1 -W 15 "+peer)...)
	if err != nil {
		return fmt.Errorf("ping %s: %w\n%s", peer, err, out)
	}
	return nil
}

// pingUntil sends a ping twice a second until the context ends, and returns an error unless every ping is answered.
func pingUntil(ctx context.Context, n *kube.Node, container, peer string) error {
	for ctx.Err() == nil {
		if err := pingOnce(context.WithoutCancel(ctx), n, container, peer); err != nil {
			return err
		}
		time.Sleep(500 * time.Millisecond)
	}
	return nil
}

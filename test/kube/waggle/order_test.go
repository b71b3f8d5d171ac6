package waggle_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/waggle-net/waggle/test/kube"
)

func rounds() int {
	if os.Getenv("WAGGLE_TEST_SOAK") != "" {
		return 20
	}
	return 3
}

// TestPrivilegedOrder_NoPodStartsUnmanaged starts kubelet, the agent and pods in random order, on a fresh node and on one
// that has the configuration of an earlier run. Whoever comes first, each pod must be an endpoint of ours.
func TestPrivilegedOrder_NoPodStartsUnmanaged(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	c, n := prepared(t, kube.Options{ClusterCIDR: kube.DualStackCIDR})
	var p *kube.Process
	for round := range rounds() {
		if err := n.StopKubelet(); err != nil {
			t.Fatal(err)
		}
		if p != nil {
			if err := p.Kill(); err != nil {
				t.Fatal(err)
			}
		}
		if random.IntN(2) == 0 {
			if _, err := n.Run(t.Context(), "rm", "-f", "/etc/cni/net.d/05-waggle.conflist"); err != nil {
				t.Fatal(err)
			}
		}
		var all errgroup.Group
		after := func(what string, f func() error) {
			delay := time.Duration(random.IntN(2000)) * time.Millisecond
			t.Logf("round %d: %s after %s", round, what, delay)
			all.Go(func() error { time.Sleep(delay); return f() })
		}
		after("kubelet", n.StartKubelet)
		after("agent", func() (err error) { p, err = n.StartAgent(kube.AdminToken, "--ipam=kubernetes"); return err })
		names := []string{}
		for i := range 3 {
			name := fmt.Sprintf("order-%d-%d", round, i)
			names = append(names, name)
			after("pod "+name, func() error { return c.CreatePod(t.Context(), kube.Pod{Name: name, Node: n.Name}) })
		}
		if err := all.Wait(); err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			if err := c.WaitPodReady(t.Context(), "default/"+name); err != nil {
				t.Fatal(err)
			}
		}
		managed(t, c, n, names)
		for _, name := range names {
			if err := c.DeletePod(t.Context(), "default/"+name); err != nil {
				t.Fatal(err)
			}
		}
	}
	stop(t, p)
}

// managed wants every pod to be an endpoint with the addresses that kubelet reports.
func managed(t *testing.T, c *kube.Cluster, n *kube.Node, pods []string) {
	t.Helper()
	type endpoint struct{ IPv4, IPv6, K8sPodName string }
	endpoints := map[string]endpoint{}
	for _, e := range rows[endpoint](t, n, "endpoints") {
		endpoints[e.K8sPodName] = e
	}
	for _, name := range pods {
		ips, err := c.PodIPs(t.Context(), "default/"+name)
		if err != nil {
			t.Fatal(err)
		}
		if e := endpoints[name]; e.IPv4 == "" || !strings.Contains(strings.Join(ips, " "), e.IPv4) || !strings.Contains(strings.Join(ips, " "), e.IPv6) {
			t.Errorf("pod %s with the addresses %v is the endpoint %+v", name, ips, e)
		}
	}
	if err := c.WaitFor(t.Context(), "no pod to be unmanaged", func() error {
		unmanaged, err := readRows[struct{ Namespace, Name string }](t, n, "unmanaged-pods")
		if err == nil && len(unmanaged) > 0 {
			err = fmt.Errorf("unmanaged are %v", unmanaged)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
}

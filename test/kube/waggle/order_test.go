package waggle_test

import (
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/waggle-net/waggle/test/kube"
)

// soak reports whether the test may use larger counts and times than an ordinary run.
func soak() bool { return os.Getenv("WAGGLE_TEST_SOAK") != "" }

// rounds returns the number of rounds, at least three: on a fresh node, on a node with the configuration of the previous run, and on a node without it.
func rounds() int {
	if soak() {
		return 20
	}
	return 3
}

// lostConfiguration reports whether a node has lost its CNI configuration before a round.
func lostConfiguration(random *rand.Rand, round int) bool {
	return round == 2 || round > 2 && random.IntN(2) == 0
}

// newRandom follows the rule of pkg/testseed: WAGGLE_SEED, a decimal number, or 1, mixed with the test's name.
func newRandom(t *testing.T) *rand.Rand {
	t.Helper()
	seed := uint64(1)
	if text := os.Getenv("WAGGLE_SEED"); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("WAGGLE_SEED=%q: want a decimal number of at most 64 bits", text)
		}
		seed = n
	}
	t.Logf("repeat with WAGGLE_SEED=%d", seed)
	name := fnv.New64a()
	_, _ = name.Write([]byte(t.Name())) // never fails
	return rand.New(rand.NewPCG(seed^name.Sum64(), 0))
}

// noPodStartsUnmanaged starts kubelet, the agent and pods in random order: on a fresh node, on a node with the CNI configuration of the previous run, and on
// a node that has lost this configuration. In any order, each pod must become an endpoint of Waggle.
func noPodStartsUnmanaged(t *testing.T, shared *kube.Cluster) {
	random := newRandom(t)
	c, n := shared.Tenant(t, kube.NodeOptions{NoKubelet: true})
	register := func() error {
		return errors.Join(n.StartKubelet(), n.WaitRegistered(t.Context()), n.AssignPodCIDRs(t.Context(), podCIDRs(n, 0)...))
	}
	var p *kube.Process
	for round := range rounds() {
		kubelet := n.StartKubelet
		if round == 0 {
			kubelet = register
		} else if err := errors.Join(n.StopKubelet(), p.Kill()); err != nil {
			t.Fatal(err)
		}
		if lostConfiguration(random, round) {
			if _, err := n.Run(t.Context(), "rm", "/etc/cni/net.d/05-waggle.conflist"); err != nil {
				t.Fatal(err)
			}
		}
		var all errgroup.Group
		after := func(what string, f func() error) {
			delay := time.Duration(random.IntN(2000)) * time.Millisecond
			t.Logf("round %d: %s after %s", round, what, delay)
			all.Go(func() error { time.Sleep(delay); return f() })
		}
		after("kubelet", kubelet)
		after("agent", func() (err error) { p, err = n.StartAgent(kube.AdminToken, "--ipam=kubernetes"); return err })
		names := []string{}
		for i := range 2 {
			name := fmt.Sprintf("order-%d-%d", round, i)
			names = append(names, name)
			// The creation fails until the controller manager has created the namespace's ServiceAccount.
			after("pod "+name, func() error {
				return c.WaitFor(t.Context(), name+" to be created", func() error { return c.CreatePod(t.Context(), kube.Pod{Name: name, Node: n.Name}) })
			})
		}
		if err := all.Wait(); err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			if err := c.WaitPodReady(t.Context(), name); err != nil {
				t.Fatal(err)
			}
		}
		managed(t, c, n, names)
		for _, name := range names {
			if err := c.DeletePod(t.Context(), name); err != nil {
				t.Fatal(err)
			}
		}
	}
	stop(t, p)
}

// managed waits until every pod is an endpoint with the addresses that kubelet reports.
func managed(t *testing.T, c *kube.Cluster, n *kube.Node, pods []string) {
	t.Helper()
	type endpoint struct{ IPv4, IPv6, K8sPodName string }
	endpoints := map[string]endpoint{}
	for _, e := range rows[endpoint](t, n, "endpoints") {
		endpoints[e.K8sPodName] = e
	}
	for _, name := range pods {
		ips, err := c.PodIPs(t.Context(), name)
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

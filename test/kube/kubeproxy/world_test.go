package kubeproxy_test

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/waggle-net/waggle/test/kube"
)

// service is a Service of testdata/services.yaml whose only server is the pod of its name.
type service struct{ name, ipv4, ipv6, nodePort string }

var (
	one     = service{"one", "10.96.0.81", "fd00:10:96::81", "30081"}
	two     = service{"two", "10.96.0.82", "fd00:10:96::82", "30082"}
	guarded = service{name: "guarded", ipv4: "10.96.0.83", ipv6: "fd00:10:96::83"}
)

//go:embed testdata/services.yaml
var services string

// world is a cluster of two nodes with kube-proxy and a tunnel. The servers one and three are on the first node, two and guarded on the second one.
type world struct {
	*kube.Cluster
	one, two *kube.Node
}

func newWorld(t *testing.T) *world {
	t.Helper()
	c := kube.Start(t, kube.Options{Nodes: 2, ClusterCIDR: kube.DualStackCIDR})
	w := &world{c, c.Nodes[0], c.Nodes[1]}
	if err := errors.Join(w.one.StartKubeProxy("iptables"), w.two.StartKubeProxy("nftables"), c.Apply(t.Context(), services)); err != nil {
		t.Fatal(err)
	}
	var loading errgroup.Group
	loading.Go(func() error { return c.LoadTalk(t.Context()) })
	if err := errors.Join(c.InstallWaggle(t.Context(), slices.Concat(dualStack, kept)...), loading.Wait()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, n := range c.Nodes {
			if !t.Failed() {
				break
			}
			out, err := n.Waggle(context.WithoutCancel(t.Context()), "drops")
			t.Logf("drops of %s: %v\n%s", n.Name, err, out)
		}
	})
	if err := w.WaitFor(t.Context(), "the policy", func() error {
		out, err := w.two.Waggle(t.Context(), "policy", "list")
		if err == nil && !strings.Contains(out, "default/guarded") {
			err = errors.New(out)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	for _, pod := range []kube.Pod{kube.Server("one", w.one), kube.Server("three", w.one), kube.Server("two", w.two), kube.Server("guarded", w.two)} {
		if err := w.RunPod(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

// rollOut applies the output of "waggle install" with further flags and waits until all agents are replaced.
func (w *world) rollOut(t *testing.T, flags []string) {
	t.Helper()
	if err := w.ApplyWaggle(t.Context(), flags...); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Kubectl(t.Context(), "rollout", "status", "--timeout=5m", "-n", "kube-system", "daemonset/waggle"); err != nil {
		t.Fatal(err)
	}
	if err := w.WaitWaggle(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// status waits until all nodes report a routing mode, and whether Waggle serves Services.
func (w *world) status(t *testing.T, mode, serves string) {
	t.Helper()
	want := regexp.MustCompile(`(?ms)^Routing: +Network: ` + mode + `.*^KubeProxyReplacement: +` + serves)
	for _, n := range w.Nodes {
		if err := w.WaitFor(t.Context(), "the status of "+n.Name, func() error {
			out, err := n.Waggle(t.Context(), "status")
			if err == nil && !want.MatchString(out) {
				err = fmt.Errorf("want %v:\n%s", want, out)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
}

// ofKubeProxy matches rules of kube-proxy in mode iptables and tables of kube-proxy in mode nftables.
var ofKubeProxy = regexp.MustCompile(`(?m) -j KUBE-SERVICES$|^table ip6? kube-proxy$`)

// rules requires that each node has rules of kube-proxy, or that none has.
func (w *world) rules(t *testing.T, want bool) {
	t.Helper()
	for _, n := range w.Nodes {
		out, err := n.Run(t.Context(), "sh", "-c", "iptables-save && ip6tables-save && nft list tables")
		if err != nil || ofKubeProxy.MatchString(out) != want {
			t.Errorf("%s has rules of kube-proxy: want %t: %v\n%s", n.Name, want, err, out)
		}
	}
}

// served sends requests of pods, of processes of the nodes and of a client outside to both Services: at the node ports of both nodes and, except from outside,
// at the cluster IPs. Each pod is also a client of its own Service.
func (w *world) served(t *testing.T) {
	t.Helper()
	clients := map[string]kube.Requester{
		"pod one": w.PodRequester(t.Context(), "one"), "pod two": w.PodRequester(t.Context(), "two"),
		w.one.Name: w.one.Requester(t.Context()), w.two.Name: w.two.Requester(t.Context()),
	}
	var asking sync.WaitGroup
	for _, s := range []service{one, two} {
		nodePort := kube.BothTargets(s.nodePort, w.one.IPv4, w.one.IPv6, w.two.IPv4, w.two.IPv6)
		for name, from := range clients {
			asking.Go(func() { w.checkReplies(t, name, from, s, append(kube.BothTargets("80", s.ipv4, s.ipv6), nodePort...)) })
		}
		asking.Go(func() { w.checkReplies(t, "outside", w.OutsideRequester(t.Context()), s, nodePort) })
	}
	asking.Wait()
	w.policy(t)
}

// policy requires that the Service guarded answers the client that its policy allows, on the other node, and no other one on either node.
func (w *world) policy(t *testing.T) {
	t.Helper()
	targets := kube.BothTargets("80", guarded.ipv4, guarded.ipv6)
	w.checkReplies(t, "pod one", w.PodRequester(t.Context(), "one"), guarded, targets)
	for _, pod := range []string{"two", "three"} {
		if err := kube.Silent(w.PodRequester(t.Context(), pod, "-within", "2s"), targets...); err != nil {
			t.Errorf("pod %s to Service guarded: %v", pod, err)
		}
	}
}

// checkReplies waits until the server of a Service answers all targets. kube-proxy may replace the client's address, so any address is accepted.
func (w *world) checkReplies(t *testing.T, client string, from kube.Requester, s service, targets []string) {
	t.Helper()
	anonymous := func(targets ...string) ([]string, error) {
		got, err := from(targets...)
		for i, line := range got {
			got[i] = line[:max(strings.LastIndexByte(line, ' '), 0)]
		}
		return got, err
	}
	if err := w.WaitReplies(t.Context(), anonymous, slices.Repeat([]string{s.name + " 8080"}, len(targets)), targets...); err != nil {
		t.Errorf("%s to Service %s: %v", client, s.name, err)
	}
}

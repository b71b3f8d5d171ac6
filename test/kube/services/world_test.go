package services_test

import (
	"context"
	_ "embed"
	"regexp"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/waggle-net/waggle/test/kube"
	"github.com/waggle-net/waggle/test/kube/servicechecks"
)

// servesServices matches the status of a node without kube-proxy.
var servesServices = regexp.MustCompile(`(?m)^KubeProxyReplacement: +True,`)

// Addresses that testdata/web.yaml gives its Services.
const (
	webIPv4, webIPv6, webPort    = "10.96.0.80", "fd00:10:96::80", "30080"
	timeIPv4, timeIPv6, timePort = "10.96.0.81", "fd00:10:96::81", "30081"
)

//go:embed testdata/web.yaml
var web string

// world is a cluster of two nodes with Waggle on both and routes to the pods of each.
type world struct {
	*servicechecks.World
}

func newWorld(t *testing.T) *world {
	t.Helper()
	c := kube.Start(t, kube.Options{Nodes: 2, ClusterCIDR: kube.DualStackCIDR, APIServerArgs: []string{lenient, "--enable-aggregator-routing=true"}, NodeOptions: kube.NodeOptions{Taints: []string{"node.cilium.io/agent-not-ready=true:NoSchedule"}}})
	w := &world{&servicechecks.World{Cluster: c, A: c.Nodes[0], B: c.Nodes[1]}}
	var loading errgroup.Group
	loading.Go(func() error { return c.LoadTalk(t.Context()) })
	// With --enable-aggregator-routing the API server connects to the addresses of pods in place of ClusterIPs.
	// Without bpf-lb-sock-terminate-pod-connections, a connected UDP socket in a pod keeps a server that was removed from the Service as long as the server
	// answers. Servers see the addresses of clients on other nodes only without a tunnel. Package test/kube/waggle tests the default options.
	if err := c.InstallWaggle(t.Context(), "--set", "enable-ipv6=true", "--set", "routing-mode=native", "--set", "bpf-lb-sock-terminate-pod-connections=true"); err != nil {
		t.Fatal(err)
	}
	if err := loading.Wait(); err != nil {
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
	for _, n := range c.Nodes {
		w.route(t, n)
		if err := n.WaitStatus(t.Context(), servesServices.MatchString); err != nil {
			t.Fatalf("the status of %s does not say that Waggle serves Services: %v", n.Name, err)
		}
	}
	return w
}

// route adds routes on the router for a node's pods.
func (w *world) route(t *testing.T, n *kube.Node) {
	t.Helper()
	var object struct{ Spec struct{ PodCIDRs []string } }
	if err := w.GetObject(t.Context(), "/api/v1/nodes/"+n.Name, &object); err != nil {
		t.Fatal(err)
	}
	for _, cidr := range object.Spec.PodCIDRs {
		if err := w.Route(cidr, n); err != nil {
			t.Fatal(err)
		}
	}
}

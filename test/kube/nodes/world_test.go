package nodes_test

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/waggle-net/waggle/test/kube"
)

// Addresses that testdata/web.yaml gives its Services.
const (
	webIPv4, webIPv6, webPort = "10.96.0.80", "fd00:10:96::80", "30080"
	twoIPv4, twoIPv6, twoPort = "10.96.0.82", "fd00:10:96::82", "30082"
)

var (
	//go:embed testdata/web.yaml
	web string
	//go:embed testdata/policies.yaml
	policies string
)

// tunnelled is a line in the status of a node with a tunnel.
const tunnelled = "Network: Tunnel [vxlan]   Host: BPF"

// world is a cluster of three nodes with a tunnel between their pods. The router between the nodes has no routes to pods.
type world struct {
	*kube.Cluster
	one, two, three *kube.Node
	ips             map[string][]string // of the servers "one", "two" and "three", each on the node of that name, IPv4 first
	talking         *kube.Clients       // clients whose connections must not fail
	allowed, denied *kube.Clients       // clients of the guarded server, see [world.policies]
}

func newWorld(t *testing.T) *world {
	t.Helper()
	c := kube.Start(t, kube.Options{Nodes: 3, ClusterCIDR: kube.DualStackCIDR, NodeOptions: kube.NodeOptions{Taints: []string{notReadyTaint + "=true:NoSchedule"}}})
	w := &world{Cluster: c, one: c.Nodes[0], two: c.Nodes[1], three: c.Nodes[2], ips: map[string][]string{}, talking: c.NewClients("talking"),
		allowed: c.NewClients("allowed", "-within", briefly), denied: c.NewClients("denied", "-within", briefly)}
	var loading errgroup.Group
	loading.Go(func() error { return c.LoadTalk(t.Context()) })
	// The API server, which is outside the nodes, calls webhooks by ClusterIPs.
	if err := errors.Join(c.InstallWaggle(t.Context(), "--set", "enable-ipv6=true", "--set", "bpf-lb-external-clusterip=true"), loading.Wait()); err != nil {
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
		w.tunnels(t, n)
	}
	for name, n := range w.servers() {
		pod := kube.Server(name, n)
		pod.Labels["stays"] = "true" // of the servers of servicechecks.Affinity
		w.serve(t, pod)
	}
	return w
}

// servers returns the nodes of the server pods by pod name.
func (w *world) servers() map[string]*kube.Node {
	return map[string]*kube.Node{"one": w.one, "two": w.two, "three": w.three}
}

// serve starts a pod and stores its addresses.
func (w *world) serve(t *testing.T, pod kube.Pod) {
	t.Helper()
	err := w.RunPod(t.Context(), pod)
	if err == nil {
		w.ips[pod.Name], err = w.PodIPs(t.Context(), pod.Name)
	}
	if ips := w.ips[pod.Name]; err != nil || len(ips) != 2 {
		t.Fatalf("the pod %s has the addresses %v: %v", pod.Name, ips, err)
	}
}

// tunnels requires that the status of a node reports the tunnel.
func (w *world) tunnels(t *testing.T, n *kube.Node) {
	t.Helper()
	if err := n.WaitStatus(t.Context(), func(status string) bool { return strings.Contains(status, tunnelled) }); err != nil {
		t.Fatalf("the status of %s does not say %q: %v", n.Name, tunnelled, err)
	}
}

// request waits until a server answers all targets and reports the client address of the target's family.
func (w *world) request(t *testing.T, from kube.Requester, server string, clients []string, targets ...string) {
	t.Helper()
	var want []string
	for _, target := range targets {
		_, at, _ := strings.Cut(target, "://")
		address := netip.MustParseAddrPort(at)
		client := clients[0]
		if address.Addr().Is6() {
			client = clients[1]
		}
		want = append(want, fmt.Sprintf("%s 8080 %s", server, client))
	}
	if err := w.WaitReplies(t.Context(), from, want, targets...); err != nil {
		t.Error(err)
	}
}

// internal returns the source addresses of a node's own packets to pods of other nodes, IPv4 first.
func (w *world) internal(t *testing.T, n *kube.Node) []string {
	t.Helper()
	var object struct {
		Spec struct{ Addresses []struct{ Type, IP string } }
	}
	if err := w.GetObject(t.Context(), "/apis/cilium.io/v2/ciliumnodes/"+n.Name, &object); err != nil {
		t.Fatal(err)
	}
	addresses := []string{"", ""}
	for _, a := range object.Spec.Addresses {
		switch {
		case a.Type != "CiliumInternalIP":
		case strings.Contains(a.IP, ":"):
			addresses[1] = a.IP
		default:
			addresses[0] = a.IP
		}
	}
	return addresses
}

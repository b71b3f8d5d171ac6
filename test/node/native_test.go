package node_test

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/test/nodekit"
)

// Pods of three nodes on one link reach each other and the nodes under their own addresses, also while an agent is dead. A removed node keeps its routes for a
// time; then only its routes are deleted.
func TestPrivilegedNative_PodsOfDifferentNodes(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, "--routing-mode=native", "--auto-direct-node-routes")
	pods := map[*nodekit.Node]*nodekit.Pod{}
	for _, n := range c.Nodes {
		pods[n] = addPod(t, n, "pod-"+n.Name())
		eventually(t, func() error { return routesTo(t, n, 4) })
	}
	t.Run("all run", func(t *testing.T) {
		for _, from := range c.Nodes {
			for _, to := range c.Nodes {
				if from != to {
					reachBetween(t, from, to, pods)
				}
			}
		}
	})
	one, two, three := c.Nodes[0], c.Nodes[1], c.Nodes[2]
	if err := two.KillAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Run("the agent of the second node is dead", func(t *testing.T) {
		reachBetween(t, one, two, pods)
		reachBetween(t, two, three, pods)
	})
	if err := two.StartAgent(); err != nil {
		t.Fatal(err)
	}
	waitReady(t, two)
	if err := c.Forget(three); err != nil {
		t.Fatal(err)
	}
	kubeNode{Node: one}.awaitRow(t, "nodes", string(nodes.Removed))
	reachBetween(t, one, three, pods)
	for _, n := range []*nodekit.Node{one, two} {
		forgetRemoved(t, n)
		eventually(t, func() error { return routesTo(t, n, 2) })
	}
	reachBetween(t, one, two, pods)
	reachBetween(t, two, one, pods)
}

// Nodes and their pods have IPv6 only, and reach each other over the routes between the nodes, also through services and under policies.
func TestPrivilegedNative_WithoutIPv4(t *testing.T) {
	t.Parallel()
	withoutIPv4(t, haveARoute, "--routing-mode=native", "--auto-direct-node-routes")
}

// haveARoute waits until each of two nodes has one route to the other.
func haveARoute(t *testing.T, all []kubeNode) {
	t.Helper()
	for _, n := range all {
		eventually(t, func() error { return routesTo(t, n.Node, 1) })
	}
}

// withoutIPv4 starts nodes with IPv6 only, waits with areReady until they are ready, and exchanges traffic between them.
func withoutIPv4(t *testing.T, areReady func(*testing.T, []kubeNode), args ...string) {
	t.Helper()
	c, all := newKubeCluster(t, 2, append(args, "--enable-ipv4=false")...)
	for _, n := range all {
		n.putNode(n.UplinkAddr(true))
		if err := n.Do(func() error {
			return errors.Join(delAddr("eth0", netip.PrefixFrom(n.UplinkAddr(false), 24)), // this deletes the default route as well
				defaultRouteIPv6("eth0"))
		}); err != nil {
			t.Fatal(err)
		}
	}
	startAgents(t, c)
	one, two := all[0], all[1]
	client := one.startPod(t, "client", map[string]string{"app": "client"})
	neighbour := two.startPod(t, "neighbour", map[string]string{"app": "client"})
	server := two.startPod(t, "server", map[string]string{"app": "server"})
	areReady(t, all)
	addr := server.Addr(true)
	for _, from := range []nodekit.NetNS{client, one.Host()} {
		if err := errors.Join(nodekit.Ping(from, addr, 4000), nodekit.TCP(from, server, addr, 1<<20), nodekit.UDP(from, server, addr, 100)); err != nil {
			t.Error(err)
		}
	}
	if err := nodekit.TCP(client, one.OutsideHost(), outsideAddr(true), 1<<16); err != nil {
		t.Errorf("a pod to the outside: %v", err)
	}
	t.Run("services", func(t *testing.T) { serveBetweenNodes(t, all, client, neighbour, server, true, false) })
	t.Run("policies", func(t *testing.T) { processesOfNodes(t, all, false) })
}

// While an agent is dead, another node gets pod ranges that the agent's node does not know. Datagrams to a pod there leave under the address of the node, like
// datagrams to the entity world. When the agent runs again, later datagrams of the same flow leave under the address of the pod.
func TestPrivilegedNative_FlowOlderThanRange(t *testing.T) {
	t.Parallel()
	all := startKubeCluster(t, 2, "--routing-mode=native", "--auto-direct-node-routes")
	one, two := all[0], all[1]
	client := one.startPod(t, "client", map[string]string{"app": "client"})
	if err := errors.Join(one.KillAgent(t.Context()), two.StopAgent(t.Context())); err != nil {
		t.Fatal(err)
	}
	object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: two.Name(), UID: "other"}, Spec: corev1.NodeSpec{PodCIDRs: []string{"10.99.0.0/24", "fd00:99::/64"}}}
	for _, family := range families {
		object.Status.Addresses = append(object.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: two.UplinkAddr(family.ipv6).String()})
	}
	two.server.Put(object)
	if err := two.StartAgent(); err != nil {
		t.Fatal(err)
	}
	waitReady(t, two.Node)
	server := two.startPod(t, "server", map[string]string{"app": "server"})
	heard := listenAll(t, server)
	socket := dial(t, client, "udp", netip.AddrPortFrom(server.Addr(false), 2222))
	send := func() error {
		if _, err := socket.Write([]byte("?")); !errors.Is(err, unix.ECONNREFUSED) { // the server has no such port
			return err
		}
		return nil
	}
	if err := send(); err != nil {
		t.Fatal(err)
	}
	if err := one.StartAgent(); err != nil {
		t.Fatal(err)
	}
	waitReady(t, one.Node)
	eventually(t, func() error {
		err := send()
		if err == nil && heard.from(client.Addr(false)) == 0 {
			err = fmt.Errorf("the server has heard %v, and not the client", heard.sources())
		}
		return err
	})
	if heard.from(one.UplinkAddr(false)) == 0 {
		t.Errorf("the server has heard %v: the flow has not begun under the address of the node", heard.sources())
	}
}

// A policy on one node selects pods of another node by their labels. It denies the other pods and that node itself, with and without the agent, and after
// the labels have changed.
func TestPrivilegedNative_PoliciesBetweenNodes(t *testing.T) {
	t.Parallel()
	policiesBetweenNodes(t, startKubeCluster(t, 2, "--routing-mode=native", "--auto-direct-node-routes"))
}

func policiesBetweenNodes(t *testing.T, all []kubeNode) {
	t.Helper()
	one, two := all[0], all[1]
	two.server.Put(&networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "server", UID: "u"},
		Spec: networkingv1.NetworkPolicySpec{PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "server"}},
			Ingress: []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{
				PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "client"}}}}}}}})
	two.awaitRow(t, "policies", "default/server")
	server := two.startPod(t, "server", map[string]string{"app": "server"})
	client := one.startPod(t, "client", map[string]string{"app": "client"})
	other := one.startPod(t, "other", map[string]string{"app": "other"})
	for _, pod := range []*nodekit.Pod{client, other} {
		for _, family := range families {
			awaitIdentity(t, two, pod.Addr(family.ipv6), one.identityOf(t, pod).Identity)
		}
	}
	verdicts := func(t *testing.T) {
		var pings sync.WaitGroup // denied pings: each waits for the whole timeout
		defer pings.Wait()
		for _, family := range families {
			addr := server.Addr(family.ipv6)
			for name, denied := range map[string]nodekit.NetNS{"the other pod": other, "the other node": one.Host()} {
				pings.Go(func() {
					if err := nodekit.PingBriefly(denied, addr, 56); err == nil {
						t.Errorf("%s: %s reaches the server", family.name, name)
					}
				})
			}
			if err := errors.Join(nodekit.Ping(client, addr, 56), nodekit.TCP(client, server, addr, 1<<16), nodekit.UDP(client, server, addr, 100)); err != nil {
				t.Errorf("%s: the client that is allowed: %v", family.name, err)
			}
			if err := nodekit.Ping(server, client.Addr(family.ipv6), 56); err != nil {
				t.Errorf("%s: the way back: %v", family.name, err)
			}
		}
	}
	t.Run("both run", verdicts)
	if err := two.KillAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Run("the agent of the server is dead", verdicts)
	if err := two.StartAgent(); err != nil {
		t.Fatal(err)
	}
	waitReady(t, two.Node)
	t.Run("the agent runs again", verdicts)
	one.putPod("client", map[string]string{"app": "former"})
	one.putPod("other", map[string]string{"app": "client"})
	client, other = other, client
	for _, pod := range []*nodekit.Pod{client, other} {
		for _, family := range families {
			eventually(t, func() error {
				if err := nodekit.PingBriefly(pod, server.Addr(family.ipv6), 56); (err == nil) != (pod == client) {
					return fmt.Errorf("pod %s: ping says %v", pod.Name, err)
				}
				return nil
			})
		}
	}
	t.Run("labels have changed", verdicts)
	t.Run("processes of the nodes", func(t *testing.T) { processesOfNodes(t, all, true) })
}

// awaitIdentity waits until a node knows the identity of an address.
func awaitIdentity(t *testing.T, n kubeNode, addr netip.Addr, identity uint32) {
	t.Helper()
	eventually(t, func() error {
		out, err := n.Waggle(t.Context(), "ip", "get", addr.String())
		if err == nil && !strings.Contains(out, fmt.Sprint(identity)) {
			err = fmt.Errorf("%s has not identity %d:\n%s", addr, identity, out)
		}
		return err
	})
}

// routesTo returns an error unless the kernel has the wanted number of routes to other nodes.
func routesTo(t *testing.T, n *nodekit.Node, want int) error {
	t.Helper()
	text, err := n.Waggle(t.Context(), "db", "show", "desired-routes")
	if err != nil {
		return err
	}
	done := 0
	for line := range strings.Lines(text) {
		if strings.Contains(line, "node-routes") && strings.Contains(line, "Done") {
			done++
		}
	}
	if done != want {
		return fmt.Errorf("%d routes to other nodes are in the kernel, want %d:\n%s", done, want, text)
	}
	return nil
}

// reachBetween exchanges traffic between the pods of two nodes, and from a node to the pod of the other node.
func reachBetween(t *testing.T, from, to *nodekit.Node, pods map[*nodekit.Node]*nodekit.Pod) {
	t.Helper()
	for _, family := range families {
		t.Run(fmt.Sprintf("%s from %s to %s", family.name, from.Name(), to.Name()), func(t *testing.T) {
			client, server := pods[from], pods[to]
			addr, own := server.Addr(family.ipv6), client.Addr(family.ipv6)
			for _, sender := range []nodekit.NetNS{client, from.Host()} {
				if err := errors.Join(nodekit.Ping(sender, addr, 4000), nodekit.TCP(sender, server, addr, 1<<16), nodekit.UDP(sender, server, addr, 100)); err != nil {
					t.Error(err)
				}
			}
			if err := nodekit.Ping(client, to.UplinkAddr(family.ipv6), 56); err != nil {
				t.Errorf("the node itself: %v", err)
			}
			heard := nodekit.Listen(t, server, addr, 2222)
			if err := nodekit.Spoof(client, own, addr); err != nil {
				t.Fatal(err)
			}
			select {
			case source := <-heard:
				if source != own {
					t.Errorf("the pod sees %s, not the address %s of its peer", source, own)
				}
			case <-time.After(awaitFor):
				t.Error("a datagram did not arrive")
			}
		})
	}
}

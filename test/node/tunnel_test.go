package node_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/gopacket/gopacket"

	"github.com/waggle-net/waggle/pkg/identity"
	"github.com/waggle-net/waggle/test/nodekit"
)

// awaitTunnel waits until a node has its tunnel and the given number of routes into it.
func awaitTunnel(t *testing.T, n *nodekit.Node, routes int) {
	t.Helper()
	eventually(t, func() error {
		text, err := n.Waggle(t.Context(), "db", "show", "overlays")
		if err == nil && (!strings.Contains(text, "true") || !strings.Contains(text, "Done")) {
			err = fmt.Errorf("the tunnel is not there:\n%s", text)
		}
		return errors.Join(err, routesTo(t, n, routes))
	})
}

// underlays lists the flags of a tunnel over each family.
var underlays = []struct {
	name string
	ipv6 bool
	args []string
}{
	{"IPv4 underlay", false, []string{"--routing-mode=tunnel"}},
	{"IPv6 underlay", true, []string{"--routing-mode=tunnel", "--underlay-protocol=ipv6"}},
}

// onUnderlays runs a test with a tunnel over each family.
func onUnderlays(t *testing.T, test func(t *testing.T, ipv6 bool, args []string)) {
	t.Helper()
	for _, u := range underlays {
		t.Run(u.name, func(t *testing.T) {
			t.Parallel()
			test(t, u.ipv6, slices.Clip(u.args))
		})
	}
}

// Pods of three nodes reach each other and the nodes through the tunnel, with an underlay that has no route to any pod, also while an agent is dead. A removed
// node keeps its routes for a time; then only its routes are deleted.
func TestPrivilegedTunnel_PodsOfDifferentNodes(t *testing.T) {
	t.Parallel()
	onUnderlays(t, func(t *testing.T, _ bool, args []string) {
		c := startCluster(t, 3, args...)
		one, two, three := c.Nodes[0], c.Nodes[1], c.Nodes[2]
		pods := map[*nodekit.Node]*nodekit.Pod{}
		for _, n := range c.Nodes {
			pods[n] = addPod(t, n, "pod-"+n.Name())
		}
		awaitTunnel(t, one, 2) // the ranges of the other two nodes adjoin
		awaitTunnel(t, two, 4)
		awaitTunnel(t, three, 4)
		t.Run("all run", func(t *testing.T) {
			for _, from := range c.Nodes {
				for _, to := range c.Nodes {
					if from != to {
						reachBetween(t, from, to, pods)
					}
				}
			}
		})
		stop := pingOnAndOn(t, pods[one], pods[two].Addr(false), pods[two].Addr(true))
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
		awaitTunnel(t, two, 4)
		stop()
		if err := c.Forget(three); err != nil {
			t.Fatal(err)
		}
		for _, n := range []*nodekit.Node{one, two} {
			forgetRemoved(t, n)
			awaitTunnel(t, n, 2)
		}
		reachBetween(t, one, two, pods)
		reachBetween(t, two, one, pods)
	})
}

// pingOnAndOn pings addresses until stop is called. Each ping must get a reply.
func pingOnAndOn(t *testing.T, from nodekit.NetNS, addrs ...netip.Addr) (stop func()) {
	t.Helper()
	done := make(chan struct{})
	var pings sync.WaitGroup
	for _, addr := range addrs {
		pings.Go(func() {
			for count := 0; ; count++ {
				select {
				case <-done:
					if count == 0 {
						t.Errorf("no ping of %s", addr)
					}
					return
				default:
				}
				if err := nodekit.Ping(from, addr, 56); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	return func() { close(done); pings.Wait() }
}

// A policy on one node selects pods of another node by their labels. The packets of these pods arrive through the tunnel.
func TestPrivilegedTunnel_PoliciesBetweenNodes(t *testing.T) {
	t.Parallel()
	policiesBetweenNodes(t, startKubeCluster(t, 2, "--routing-mode=tunnel"))
}

// Packets of clients outside to a service reach its backend on another node through the tunnel, and the replies return through it.
func TestPrivilegedTunnel_ServicesBetweenNodes(t *testing.T) {
	t.Parallel()
	onUnderlays(t, func(t *testing.T, _ bool, args []string) { servicesBetweenNodes(t, args...) })
}

// While the nodes of a cluster change the family of the underlay one by one, pods reach each other: each node sends over its own family, and receives over
// both.
func TestPrivilegedTunnel_NodesOfDifferentUnderlays(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	one, two := c.Nodes[0], c.Nodes[1]
	one.AddAgentArgs(underlays[0].args...)
	two.AddAgentArgs(underlays[1].args...)
	startAgents(t, c)
	pods := map[*nodekit.Node]*nodekit.Pod{one: addPod(t, one, "pod-one"), two: addPod(t, two, "pod-two")}
	awaitTunnel(t, one, 2)
	awaitTunnel(t, two, 2)
	reachBetween(t, one, two, pods)
	reachBetween(t, two, one, pods)
	for from, ipv6 := range map[*nodekit.Node]bool{one: false, two: true} {
		frames, err := nodekit.Capture(from.Host(), "eth0", func() error { return nodekit.Ping(pods[one], pods[two].Addr(false), 56) })
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(outers(frames), func(o outer) bool { return o.from == from.UplinkAddr(ipv6) }) {
			t.Errorf("node %s sends nothing from %s: %+v", from.Name(), from.UplinkAddr(ipv6), outers(frames))
		}
	}
}

// The tunnel needs one family only: pods with IPv6 only reach each other, also through services and under policies.
func TestPrivilegedTunnel_WithoutIPv4(t *testing.T) {
	t.Parallel()
	withoutIPv4(t, haveARoute, "--routing-mode=tunnel")
}

// While the API server is unavailable, a new pod has a provisional identity of its node only. It still reaches pods of other nodes.
func TestPrivilegedTunnel_PodWithAProvisionalIdentity(t *testing.T) {
	t.Parallel()
	all := startKubeCluster(t, 2, "--routing-mode=tunnel", "--identity-grace=1s")
	one, two := all[0], all[1]
	server := two.startPod(t, "server", map[string]string{"app": "server"})
	one.putPod("late", map[string]string{"app": "late"})
	one.awaitRow(t, "k8s-pods", "default/late")
	awaitTunnel(t, one.Node, 2)
	awaitTunnel(t, two.Node, 2)
	one.server.Stop()
	pod := addPod(t, one.Node, "late")
	if has := one.identityOf(t, pod); has.Identity != identity.ProvisionalScope+1 {
		t.Fatalf("without an API server the pod has %+v, want the first provisional identity", has)
	}
	for _, family := range families {
		if err := nodekit.Ping(pod, server.Addr(family.ipv6), 56); err != nil {
			t.Errorf("%s: %v", family.name, err)
		}
	}
}

// Senders of packets that do not fit into the tunnel get an ICMP error with the MTU; a stream finds its size.
func TestPrivilegedTunnel_TooBig(t *testing.T) {
	t.Parallel()
	onUnderlays(t, func(t *testing.T, ipv6 bool, args []string) {
		c := startCluster(t, 2, append(args, "--mtu=1460")...)
		fits := 1410
		if ipv6 {
			fits = 1390
		}
		one, two := c.Nodes[0], c.Nodes[1]
		client, server := addPod(t, one, "client"), addPod(t, two, "server")
		awaitTunnel(t, one, 2)
		awaitTunnel(t, two, 2)
		from := endsOf(t, client)
		for _, family := range families {
			target := server.Addr(family.ipv6)
			if err := nodekit.TCP(client, server, target, 1<<20); err != nil {
				t.Errorf("%s: a stream: %v", family.name, err)
			}
			if err := nodekit.TCP(one.Host(), server, target, 1<<20); err != nil {
				t.Errorf("%s: a stream of the node: %v", family.name, err)
			}
			reported := func(p gopacket.Packet) bool { return tooBig(p) == fits }
			frames, err := nodekit.CaptureUntil(client, "eth0", anyFrame(reported), func() error {
				return nodekit.SendFrame(client, "eth0", bigDatagram(t, from, client.Addr(family.ipv6), target))
			})
			if err != nil {
				t.Fatal(err)
			}
			if !slices.ContainsFunc(decoded(frames), reported) {
				t.Errorf("%s: no ICMP error says that %d bytes fit: %v", family.name, fits, decoded(frames))
			}
		}
	})
}

package node_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/vishvananda/netlink"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/waggle-net/waggle/pkg/identity"
	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/podlink"
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
	all := startKubeCluster(t, 2, "--routing-mode=tunnel")
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

// The API server of one node is unavailable, and pods start on the other node: the first node knows them by the VNI of their packets. Policies apply to them,
// and they never count as the entity world. Pods with an identity that is new to the disconnected node stay unknown.
func TestPrivilegedTunnel_UnknownRemotePods(t *testing.T) {
	t.Parallel()
	all := startKubeCluster(t, 2, "--routing-mode=tunnel", noProvisional, "--prometheus-serve-addr", metricsAddress)
	one, two := all[0], all[1]
	two.server.Put(&ciliumv2.CiliumNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "server"}, Spec: json.RawMessage(
		`{"endpointSelector": {"matchLabels": {"app": "server"}}, "ingress": [{"fromEndpoints": [{"matchLabels": {"app": "client"}}]}, {"fromEntities": ["world"]}]}`)},
		&ciliumv2.CiliumNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "shielded"}, Spec: json.RawMessage(
			`{"endpointSelector": {"matchLabels": {"app": "shielded"}}, "enableDefaultDeny": {"ingress": false}, "ingressDeny": [{"fromEndpoints": [{"matchLabels": {"app": "other"}}]}]}`)})
	two.awaitRow(t, "policies", "default/shielded")
	server := two.startPod(t, "server", map[string]string{"app": "server"})
	shielded := two.startPod(t, "shielded", map[string]string{"app": "shielded"})
	open := two.startPod(t, "open", map[string]string{"app": "open"})
	relabelled := one.startPod(t, "former", map[string]string{"app": "client"})
	for _, pod := range []*nodekit.Pod{relabelled, one.startPod(t, "other", map[string]string{"app": "other"})} {
		for _, family := range families {
			awaitIdentity(t, two, pod.Addr(family.ipv6), one.identityOf(t, pod).Identity)
		}
	}
	awaitTunnel(t, one.Node, 2)
	awaitTunnel(t, two.Node, 2)

	two.server.Stop()
	reaches := map[string][]*nodekit.Pod{"client": {open, server, shielded}, "other": {open}, "stranger": {open}}
	pods := map[string]*nodekit.Pod{}
	for app := range reaches {
		pods[app] = one.startPod(t, "late-"+app, map[string]string{"app": app})
		one.identityOfCluster(t, pods[app])
	}
	// The identity that a node knows for an address takes precedence over the VNI.
	one.putPod("former", map[string]string{"app": "other"})
	eventually(t, func() error {
		if has, want := one.identityOf(t, relabelled).Identity, one.identityOf(t, pods["other"]).Identity; has != want {
			return fmt.Errorf("the pod with other labels has identity %d, want %d", has, want)
		}
		return nil
	})
	verdicts := func(t *testing.T) {
		var denied sync.WaitGroup // each takes a while
		defer denied.Wait()
		for _, family := range families {
			for app, pod := range pods {
				for _, target := range []*nodekit.Pod{open, server, shielded} {
					addr := target.Addr(family.ipv6)
					if !slices.Contains(reaches[app], target) {
						denied.Go(func() {
							if nodekit.PingBriefly(pod, addr, 56) == nil {
								t.Errorf("%s: pod %s reaches pod %s", family.name, pod.Name, target.Name)
							}
						})
						continue
					}
					if err := errors.Join(nodekit.Ping(pod, addr, 56), nodekit.TCP(pod, target, addr, 1<<16), nodekit.UDP(pod, target, addr, 100)); err != nil {
						t.Errorf("%s: pod %s to pod %s: %v", family.name, pod.Name, target.Name, err)
					}
				}
				if err := nodekit.Ping(server, pod.Addr(family.ipv6), 56); err != nil {
					t.Errorf("%s: the way back to %s: %v", family.name, pod.Name, err)
				}
			}
		}
	}
	t.Run("the API server is unreachable", func(t *testing.T) {
		text, err := two.Waggle(t.Context(), "db", "show", "ipcache")
		for _, pod := range pods {
			if err != nil || strings.Contains(text, pod.Addr(false).String()+"/32") {
				t.Errorf("the node has heard of pod %s: %v\n%s", pod.Name, err, text)
			}
		}
		verdicts(t)
		for _, family := range families {
			if err := nodekit.Ping(relabelled, server.Addr(family.ipv6), 56); err != nil {
				t.Errorf("%s: the pod with other labels: %v", family.name, err)
			}
		}
		const differs = "waggle_tunnel_identity_differs_total"
		if samples, err := scrape(two.Node); err != nil || samples[differs] == 0 {
			t.Errorf("%s is %v: %v", differs, samples[differs], err)
		}
	})
	if err := two.StopAgent(t.Context()); err != nil { // a killed agent may leave a copy of the objects without the last identities
		t.Fatal(err)
	}
	t.Run("its agent is stopped", verdicts)
	if err := two.StartAgent(); err != nil {
		t.Fatal(err)
	}
	waitReady(t, two.Node)
	t.Run("its agent runs again", verdicts)
	if err := two.Do(func() error { two.server.Start(t); return nil }); err != nil {
		t.Fatal(err)
	}
	for app, pod := range pods {
		for _, family := range families {
			awaitIdentity(t, two, pod.Addr(family.ipv6), one.identityOf(t, pods[app]).Identity)
		}
	}
	reaches["stranger"] = []*nodekit.Pod{open, shielded}
	t.Run("the node has learned the pods", verdicts)
	for _, family := range families {
		if nodekit.PingBriefly(relabelled, server.Addr(family.ipv6), 56) == nil {
			t.Errorf("%s: the pod with other labels reaches the server", family.name)
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
			frames, err := nodekit.Capture(client, "eth0", func() error {
				return nodekit.SendFrame(client, "eth0", bigDatagram(t, from, client.Addr(family.ipv6), target))
			})
			if err != nil {
				t.Fatal(err)
			}
			if !slices.ContainsFunc(decoded(frames), func(p gopacket.Packet) bool { return tooBig(p) == fits }) {
				t.Errorf("%s: no ICMP error says that %d bytes fit: %v", family.name, fits, decoded(frames))
			}
		}
	})
}

// In native mode the agent removes the tunnel device, its routes and its program of a previous run.
func TestPrivilegedTunnel_Disabled_RemovesDevice(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 2, "--routing-mode=tunnel")
	one := c.Nodes[0]
	pod := addPod(t, one, "pod")
	awaitTunnel(t, one, 2)
	if err := one.StopAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	one.AddAgentArgs("--routing-mode=native")
	if err := one.StartAgent(); err != nil {
		t.Fatal(err)
	}
	waitReady(t, one)
	eventually(t, func() error {
		if err := one.Do(func() error {
			if _, err := netlink.LinkByName(podlink.OverlayDevice); !errors.As(err, new(netlink.LinkNotFoundError)) {
				return fmt.Errorf("%s is there: %w", podlink.OverlayDevice, err)
			}
			return nil
		}); err != nil {
			return err
		}
		return routesTo(t, one, 0)
	})
	for _, family := range families {
		if err := nodekit.Ping(one.Host(), pod.Addr(family.ipv6), 56); err != nil {
			t.Error(err)
		}
	}
}

// Another VXLAN device uses the port. The agent serves its own pods, reports the device, and uses the port when it is free.
func TestPrivilegedTunnel_PortIsTaken(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, "--routing-mode=tunnel")
	one := c.Nodes[0]
	foreign := &netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{Name: "flannel.1"}, VxlanId: 1, Port: 8472, Learning: false}
	if err := one.Do(func() error {
		if err := netlink.LinkAdd(foreign); err != nil {
			return err
		}
		return netlink.LinkSetUp(foreign)
	}); err != nil {
		t.Fatal(err)
	}
	startAgents(t, c)
	addPod(t, one, "pod")
	const want = "device flannel.1 has UDP port 8472: remove it, or set --tunnel-port"
	eventually(t, func() error {
		text, err := one.Waggle(t.Context(), "db", "show", "overlays")
		if err == nil && !strings.Contains(text, want) {
			err = fmt.Errorf("the table does not say that %s:\n%s", want, text)
		}
		return err
	})
	if err := one.Do(func() error { return netlink.LinkDel(foreign) }); err != nil {
		t.Fatal(err)
	}
	awaitTunnel(t, one, 2)
}

// throughDevice counts the packets that the tunnel device of a node has received and sent.
func throughDevice(t *testing.T, n *nodekit.Node) (packets uint64) {
	t.Helper()
	if err := n.Do(func() error {
		link, err := netlink.LinkByName(podlink.OverlayDevice)
		if err == nil {
			packets = link.Attrs().Statistics.RxPackets + link.Attrs().Statistics.TxPackets
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return packets
}

// Programs encapsulate and decapsulate the traffic between pods of different nodes, and the agent reports that. If the kernel does not allow that, the device
// does it, and the agent reports the reason. Nodes of both kinds exchange packets.
func TestPrivilegedTunnel_WithAndWithoutTheDevice(t *testing.T) {
	t.Parallel()
	needBuilds(t)
	c := startCluster(t, 2, "--routing-mode=tunnel")
	one, two := c.Nodes[0], c.Nodes[1]
	pods := map[*nodekit.Node]*nodekit.Pod{one: addPod(t, one, "pod-one"), two: addPod(t, two, "pod-two")}
	awaitTunnel(t, one, 2)
	awaitTunnel(t, two, 2)
	awaitVerboseStatus := func(n *nodekit.Node, want string) {
		t.Helper()
		eventually(t, func() error {
			text, err := n.Waggle(t.Context(), "status", "--verbose")
			if err == nil && !strings.Contains(text, want) {
				err = fmt.Errorf("%s does not say %q:\n%s", n.Name(), want, text)
			}
			return err
		})
	}
	ping := func() {
		t.Helper()
		for _, family := range families {
			if err := nodekit.Ping(pods[one], pods[two].Addr(family.ipv6), 1000); err != nil {
				t.Errorf("%s: %v", family.name, err)
			}
		}
	}
	awaitVerboseStatus(one, "pod ranges behind the tunnel; encapsulation in BPF")
	ping()
	before := throughDevice(t, one) + throughDevice(t, two)
	ping()
	if after := throughDevice(t, one) + throughDevice(t, two); after != before {
		t.Errorf("the devices have received and sent %d packets", after-before)
	}

	device := agentWith(t, edited(t, "bpf/encap.go", "	var failures []string\n", "	return EncapSupport{Err: errors.New(\"the kernel refuses it\")}\n	var failures []string\n"))
	stop := pingOnAndOn(t, pods[one], pods[two].Addr(false), pods[two].Addr(true))
	if err := one.StopAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	one.UseAgent(device)
	if err := one.StartAgent(); err != nil {
		t.Fatal(err)
	}
	waitReady(t, one)
	awaitVerboseStatus(one, "pod ranges behind the tunnel; encapsulation by the device: the kernel refuses it")
	stop()
	beforeOne, beforeTwo := throughDevice(t, one), throughDevice(t, two)
	ping()
	if afterOne, afterTwo := throughDevice(t, one), throughDevice(t, two); afterOne < beforeOne+4 || afterTwo != beforeTwo {
		t.Errorf("%d packets by the device of %s, want 4, and %d by that of %s, want 0", afterOne-beforeOne, one.Name(), afterTwo-beforeTwo, two.Name())
	}
	for _, from := range c.Nodes {
		for _, to := range c.Nodes {
			if from != to {
				reachBetween(t, from, to, pods)
			}
		}
	}
}

package node_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/waggle-net/waggle/pkg/testnet"
	"github.com/waggle-net/waggle/test/nodekit"
	"github.com/waggle-net/waggle/test/nodekit/load"
)

// byStack returns the number of packets that the network stacks of nodes have forwarded.
func byStack(nodes ...kubeNode) (packets uint64, err error) {
	for _, n := range nodes {
		for _, family := range families {
			err = errors.Join(err, n.Do(func() error {
				count, err := testnet.Forwarded(family.ipv6)
				packets += count
				return err
			}))
		}
	}
	return packets, err
}

// pingTwoPods pings between two pods in both directions.
func pingTwoPods(client, server *nodekit.Pod) (err error) {
	for _, family := range families {
		err = errors.Join(err, nodekit.Ping(client, server.Addr(family.ipv6), 1000), nodekit.Ping(server, client.Addr(family.ipv6), 1000))
	}
	return err
}

// pastTheStack waits until the traffic between two pods bypasses the network stacks of all nodes.
func pastTheStack(t *testing.T, all []kubeNode, client, server *nodekit.Pod) {
	t.Helper()
	eventually(t, func() error { // once all hooks run one generation
		before, err := byStack(all...)
		err = errors.Join(err, pingTwoPods(client, server))
		after, failed := byStack(all...)
		if err = errors.Join(err, failed); err == nil && after != before {
			err = fmt.Errorf("the stacks have forwarded %d packets", after-before)
		}
		return err
	})
	before, err := byStack(all...)
	for _, family := range families {
		for from, to := range map[*nodekit.Pod]*nodekit.Pod{client: server, server: client} {
			addr := to.Addr(family.ipv6)
			err = errors.Join(err, nodekit.TCP(from, to, addr, 1<<20), nodekit.UDP(from, to, addr, 100))
		}
	}
	after, failed := byStack(all...)
	if err = errors.Join(err, failed); err != nil || after != before {
		t.Errorf("the stacks have forwarded %d packets: %v", after-before, err)
	}
}

// Programs forward the traffic between pods of different nodes and bypass the network stacks of the nodes, also while an agent is dead, after its restart, and
// over an upgrade and back. Where netfilter has to see the packets, the stack of that node forwards them, and its agent reports the reason.
func TestPrivilegedNative_BypassesStack(t *testing.T) {
	t.Parallel()
	needBuilds(t)
	other, err := builds.Agent(nodekit.Build{Generation: otherGeneration})
	if err != nil {
		t.Fatal(err)
	}
	all := startKubeCluster(t, 2, "--routing-mode=native", "--auto-direct-node-routes")
	one, two := all[0], all[1]
	client, server := one.startPod(t, "client", map[string]string{"app": "client"}), two.startPod(t, "server", map[string]string{"app": "server"})
	for _, family := range families {
		awaitIdentity(t, two, client.Addr(family.ipv6), one.identityOf(t, client).Identity)
		awaitIdentity(t, one, server.Addr(family.ipv6), two.identityOf(t, server).Identity)
	}
	pastTheStack := func() { t.Helper(); pastTheStack(t, all, client, server) }
	pastTheStack()
	stop := pingOnAndOn(t, client, server.Addr(false), server.Addr(true))
	if err := two.KillAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	pastTheStack()
	if err := two.StartAgent(); err != nil {
		t.Fatal(err)
	}
	waitReady(t, two.Node)
	requireGeneration(t, two.Node, thisGeneration) // while the programs are replaced, the stack forwards some packets
	pastTheStack()
	for _, to := range []struct {
		agent      string
		generation int
	}{{other, otherGeneration}, {"", thisGeneration}} {
		if err := two.UpgradeAgent(t.Context(), to.agent); err != nil {
			t.Fatal(err)
		}
		requireGeneration(t, two.Node, to.generation)
		pastTheStack()
	}
	stop()

	if err := one.StopAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	one.AddAgentArgs("--kube-proxy-replacement=false")
	if err := one.StartAgent(); err != nil {
		t.Fatal(err)
	}
	waitReady(t, one.Node)
	eventually(t, func() error {
		text, err := one.Waggle(t.Context(), "status", "--verbose")
		if want := "the stack forwards packets between pods of different nodes: --kube-proxy-replacement=false"; err == nil && !strings.Contains(text, want) {
			err = fmt.Errorf("%s does not say %q:\n%s", one.Name(), want, text)
		}
		return err
	})
	beforeOne, err := byStack(one)
	beforeTwo, failed := byStack(two)
	if err := errors.Join(err, failed, pingTwoPods(client, server)); err != nil {
		t.Fatal(err)
	}
	afterOne, err := byStack(one)
	afterTwo, failed := byStack(two)
	if err := errors.Join(err, failed); err != nil || afterOne < beforeOne+8 || afterTwo != beforeTwo {
		t.Errorf("the stack of %s has forwarded %d packets, want 8, and that of %s %d, want 0: %v", one.Name(), afterOne-beforeOne, two.Name(), afterTwo-beforeTwo, err)
	}
}

// In hybrid mode, programs forward direct packets, and tunnelled packets once the network drops direct ones. Where netfilter has to see the packets, the stack
// of that node forwards them.
func TestPrivilegedHybrid_BypassesStack(t *testing.T) {
	t.Parallel()
	all := startKubeCluster(t, 2, "--routing-mode=hybrid")
	one, two := all[0], all[1]
	client, server := one.startPod(t, "client", map[string]string{"app": "client"}), two.startPod(t, "server", map[string]string{"app": "server"})
	for _, family := range families {
		awaitIdentity(t, two, client.Addr(family.ipv6), one.identityOf(t, client).Identity)
		awaitIdentity(t, one, server.Addr(family.ipv6), two.identityOf(t, server).Identity)
	}
	bothDirect(t, all)
	pastTheStack(t, all, client, server)
	for _, family := range families {
		if direct, tunnelled := sent(t, one.Node, client, client.Addr(family.ipv6), server.Addr(family.ipv6)); direct == 0 || tunnelled > 0 {
			t.Errorf("%s: %d frames past the tunnel and %d through it, want all past it", family.name, direct, tunnelled)
		}
	}
	stop := pingOnAndOn(t, client, server.Addr(false), server.Addr(true))
	if err := two.KillAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	pastTheStack(t, all, client, server)
	if err := two.StartAgent(); err != nil {
		t.Fatal(err)
	}
	waitReady(t, two.Node)
	requireGeneration(t, two.Node, thisGeneration)
	bothDirect(t, all)
	pastTheStack(t, all, client, server)
	stop()

	if err := one.StopAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	one.AddAgentArgs("--kube-proxy-replacement=false")
	if err := one.StartAgent(); err != nil {
		t.Fatal(err)
	}
	waitReady(t, one.Node)
	bothDirect(t, all)
	byTheStackOf(t, one, client, server)
}

// byTheStackOf waits until the network stack of a node forwards the traffic between two pods.
func byTheStackOf(t *testing.T, n kubeNode, client, server *nodekit.Pod) {
	t.Helper()
	eventually(t, func() error { // once all hooks run one generation
		before, err := byStack(n)
		err = errors.Join(err, pingTwoPods(client, server))
		after, failed := byStack(n)
		if err = errors.Join(err, failed); err == nil && after < before+8 {
			err = fmt.Errorf("the stack of %s has forwarded %d packets, want 8", n.Name(), after-before)
		}
		return err
	})
}

// The previous release uses the previous protocol and leaves direct packets to the network stack. An upgrade from that release and the downgrade lose no
// packet.
func TestPrivilegedHybrid_UpgradeToStackBypass(t *testing.T) {
	t.Parallel()
	needCompiler(t)
	replace, err := builds.Datapath(func(name, text string) string {
		if name == "protocol.h" {
			return strings.Replace(text, "PROTOCOL_HIGHEST = 4", "PROTOCOL_HIGHEST = 3", 1)
		}
		return text
	})
	if err != nil {
		t.Fatal(err)
	}
	before := agentWith(t, replace)
	c, all := newKubeCluster(t, 2, "--routing-mode=hybrid")
	one, two := all[0], all[1]
	two.UseAgent(before)
	startAgents(t, c)
	client, server := one.startPod(t, "client", map[string]string{"app": "client"}), two.startPod(t, "server", map[string]string{"app": "server"})
	for _, family := range families {
		awaitIdentity(t, two, client.Addr(family.ipv6), one.identityOf(t, client).Identity)
		awaitIdentity(t, one, server.Addr(family.ipv6), two.identityOf(t, server).Identity)
	}
	bothDirect(t, all)
	byTheStackOf(t, two, client, server)
	var paths []load.Path
	for _, f := range families {
		paths = append(paths, load.Path{Name: "there " + f.name, From: client, To: server, Addr: server.Addr(f.ipv6)},
			load.Path{Name: "back " + f.name, From: server, To: client, Addr: client.Addr(f.ipv6)})
	}
	l := load.StartFor(t, load.Rates{Connections: 2 * len(paths), Messages: 100, Datagrams: 600, Connects: 24}, paths, nil)
	if err := two.UpgradeAgent(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	bothDirect(t, all)
	eventually(t, func() error {
		text, err := two.Waggle(t.Context(), "shell", "--", "maps/dump", "datapath")
		if want := "protocol=4"; err == nil && !strings.Contains(text, want) {
			err = fmt.Errorf("want %s: %s", want, text)
		}
		return err
	})
	if err := two.UpgradeAgent(t.Context(), before); err != nil {
		t.Fatal(err)
	}
	bothDirect(t, all)
	lostNothing(t, l)
	byTheStackOf(t, two, client, server)
	if err := two.UpgradeAgent(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	requireGeneration(t, two.Node, thisGeneration)
	bothDirect(t, all)
	pastTheStack(t, all, client, server)
}

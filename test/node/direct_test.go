package node_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/waggle-net/waggle/pkg/testnet"
	"github.com/waggle-net/waggle/test/nodekit"
)

// byStack counts the packets that the stacks of nodes have forwarded.
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

// Programs forward what pods of different nodes exchange, past the stacks of the nodes, also while an agent is dead, after its restart, and over an upgrade
// and back. Where netfilter has to see the packets, the stack of that node forwards them, and its agent says why.
func TestPrivilegedNative_PastTheStack(t *testing.T) {
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
	ping := func() (err error) {
		for _, family := range families {
			err = errors.Join(err, nodekit.Ping(client, server.Addr(family.ipv6), 1000), nodekit.Ping(server, client.Addr(family.ipv6), 1000))
		}
		return err
	}
	pastTheStack := func() {
		t.Helper()
		eventually(t, func() error { // once all hooks run one generation
			before, err := byStack(all...)
			err = errors.Join(err, ping())
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
	pastTheStack()
	for _, agent := range []string{other, ""} {
		if err := two.UpgradeAgent(t.Context(), agent); err != nil {
			t.Fatal(err)
		}
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
		if want := "The stack forwards what pods of different nodes exchange: --kube-proxy-replacement=false"; err == nil && !strings.Contains(text, want) {
			err = fmt.Errorf("%s does not say %q:\n%s", one.Name(), want, text)
		}
		return err
	})
	beforeOne, err := byStack(one)
	beforeTwo, failed := byStack(two)
	if err := errors.Join(err, failed, ping()); err != nil {
		t.Fatal(err)
	}
	afterOne, err := byStack(one)
	afterTwo, failed := byStack(two)
	if err := errors.Join(err, failed); err != nil || afterOne < beforeOne+8 || afterTwo != beforeTwo {
		t.Errorf("the stack of %s has forwarded %d packets, want 8, and that of %s %d, want 0: %v", one.Name(), afterOne-beforeOne, two.Name(), afterTwo-beforeTwo, err)
	}
}

package node_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/waggle-net/waggle/pkg/podlink"
	"github.com/waggle-net/waggle/test/nodekit"
)

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

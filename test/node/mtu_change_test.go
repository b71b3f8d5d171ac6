package node_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/test/nodekit"
)

// The devices of two nodes get a smaller MTU while pods run, and the pods' links and routes follow. Later the nodes change from the tunnel to native routing
// and get a larger MTU while no agents run. Datagrams that fit pass each time, and senders of longer ones get an error. A link that a user has changed in a pod
// stays as it is.
func TestPrivilegedMTU_RunningPodsFollowTheNode(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, "--routing-mode=tunnel", "--underlay-protocol=ipv6", "--enable-pod-mtu-updates")
	for _, n := range c.Nodes {
		withoutOffloads(t, n)
		bridgesOnly(t, n)
	}
	startAgents(t, c)
	wantCapabilities(t, c.Nodes[0].AgentPID(), containerCapabilities|1<<unix.CAP_SYS_ADMIN)
	one, two := addPod(t, c.Nodes[0], "one"), addPod(t, c.Nodes[1], "two")
	byHand := addPod(t, c.Nodes[0], "by-hand")
	if err := byHand.Do(func() error {
		return linkNamed("eth0", func(link netlink.Link) error { return netlink.LinkSetMTU(link, 1350) })
	}); err != nil {
		t.Fatal(err)
	}
	follow := func(device, route int) {
		t.Helper()
		for i, pod := range []*nodekit.Pod{one, two} {
			eventually(t, func() error {
				return errors.Join(podMTU(pod, device, route), c.Nodes[i].Do(func() error {
					return linkNamed(pod.Result.Interfaces[0].Name, func(link netlink.Link) error {
						if have := link.Attrs().MTU; have != device {
							return fmt.Errorf("the host end of pod %s has MTU %d, want %d", pod.Name, have, device)
						}
						return nil
					})
				}))
			})
		}
		for _, family := range families {
			eventually(t, func() error { return whole(t.Context(), time.Second, one, two, two.Addr(family.ipv6), route) })
			eventually(t, func() error { return whole(t.Context(), time.Second, two, one, one.Addr(family.ipv6), route) })
			if err := whole(t.Context(), answerTimeout, one, two, two.Addr(family.ipv6), route+1); !errors.Is(err, unix.EMSGSIZE) {
				t.Errorf("%s: a packet of %d bytes: %v, want EMSGSIZE", family.name, route+1, err)
			}
			if err := nodekit.UDP(one, two, two.Addr(family.ipv6), 4000); err != nil {
				t.Errorf("%s: a datagram that may be cut: %v", family.name, err)
			}
		}
		if err := one.Check(t.Context()); err != nil {
			t.Errorf("CHECK with a device of %d bytes: %v", device, err)
		}
	}
	follow(1500, 1430)
	setDownAndRepaired(t, c.Nodes[0], one)
	deviceMTU(t, c, 1400)
	follow(1400, 1330)
	if err := byHand.Do(func() error {
		return linkNamed("eth0", func(link netlink.Link) error {
			if have := link.Attrs().MTU; have != 1350 {
				t.Errorf("the link that a user changed has MTU %d", have)
			}
			return nil
		})
	}); err != nil {
		t.Fatal(err)
	}
	podMTURow(t, c.Nodes[0], "by-hand", "by-hand", "the link has 1350 bytes")
	for _, n := range c.Nodes {
		if err := n.StopAgent(t.Context()); err != nil {
			t.Fatal(err)
		}
		n.AddAgentArgs("--routing-mode=native", "--auto-direct-node-routes")
	}
	deviceMTU(t, c, 9000)
	startAgents(t, c)
	follow(9000, 9000)
	podMTURow(t, c.Nodes[0], "one", "follows")
	podMTURow(t, c.Nodes[0], "by-hand", "by-hand", "the link has 1350 bytes")
	setDownAndRepaired(t, c.Nodes[0], one)
	deviceMTU(t, c, 1500)
	follow(1500, 1500)
	setDownAndRepaired(t, c.Nodes[0], one)
	follow(1500, 1500)
	for _, n := range c.Nodes {
		repairs, err := n.Waggle(t.Context(), "db", "show", "drift-repairs")
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(repairs) {
			if strings.Contains(line, "lxc") && strings.Contains(line, "has MTU") {
				t.Errorf("the agent of %s takes its own changes for those of others:\n%s", n.Name(), repairs)
			}
		}
	}
}

// setDownAndRepaired sets the host end of a pod's link down, and waits until the agent has set it up again with the MTU that the agent computes.
func setDownAndRepaired(t *testing.T, n *nodekit.Node, pod *nodekit.Pod) {
	t.Helper()
	name := pod.Result.Interfaces[0].Name
	if err := n.Do(func() error { return linkNamed(name, netlink.LinkSetDown) }); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		return n.Do(func() error {
			return linkNamed(name, func(link netlink.Link) error {
				if link.Attrs().Flags&net.FlagUp == 0 {
					return fmt.Errorf("%s is down", name)
				}
				return nil
			})
		})
	})
}

// deviceMTU sets the MTU of the devices between the nodes of a cluster.
func deviceMTU(t *testing.T, c *nodekit.Cluster, mtu int) {
	t.Helper()
	set := func(link netlink.Link) error { return netlink.LinkSetMTU(link, mtu) }
	for _, n := range c.Nodes {
		if err := errors.Join(n.Do(func() error { return linkNamed("eth0", set) }), n.Outside(func() error { return linkNamed(n.Name(), set) })); err != nil {
			t.Fatal(err)
		}
	}
}

// podMTURow waits until the row of a pod contains all words.
func podMTURow(t *testing.T, n *nodekit.Node, pod string, words ...string) {
	t.Helper()
	eventually(t, func() error {
		text, err := n.Waggle(t.Context(), "db", "show", "pod-mtus")
		for line := range strings.Lines(text) {
			if strings.Contains(line, "default/"+pod+" ") && !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(line, word) }) {
				return nil
			}
		}
		return errors.Join(err, fmt.Errorf("pod %s: no row has %q:\n%s", pod, words, text))
	})
}

// whole sends a datagram in a packet of a given length that must not be fragmented, and waits for the same from the other side.
func whole(ctx context.Context, limit time.Duration, from, to nodekit.NetNS, addr netip.Addr, length int) error {
	level, discover, never, headers := unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO, 28
	if addr.Is6() {
		level, discover, never, headers = unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO, 48
	}
	control := func(_, _ string, raw syscall.RawConn) error {
		var option error
		err := raw.Control(func(fd uintptr) {
			option = unix.SetsockoptInt(int(fd), level, discover, never)
			if addr.Is6() {
				option = errors.Join(option, unix.SetsockoptInt(int(fd), level, unix.IPV6_DONTFRAG, 1))
			}
		})
		return errors.Join(err, option)
	}
	var server net.PacketConn
	if err := nodekit.Bind(to, func() (err error) {
		server, err = (&net.ListenConfig{Control: control}).ListenPacket(ctx, "udp", netip.AddrPortFrom(addr, 0).String())
		return err
	}); err != nil {
		return err
	}
	defer server.Close()
	var client net.Conn
	if err := from.Do(func() (err error) {
		client, err = (&net.Dialer{Control: control}).DialContext(ctx, "udp", server.LocalAddr().String())
		return err
	}); err != nil {
		return err
	}
	defer client.Close()
	deadline := time.Now().Add(limit)
	if err := errors.Join(server.SetDeadline(deadline), client.SetDeadline(deadline)); err != nil {
		return err
	}
	buffer := make([]byte, length)
	if _, err := client.Write(buffer[:length-headers]); err != nil {
		return fmt.Errorf("send a packet of %d bytes to %s: %w", length, addr, err)
	}
	n, peer, err := server.ReadFrom(buffer)
	if err == nil {
		_, err = server.WriteTo(buffer[:n], peer)
	}
	if err == nil {
		n, err = client.Read(buffer)
	}
	if err == nil && n != length-headers {
		err = fmt.Errorf("%d bytes of %d came back", n, length-headers)
	}
	if err != nil {
		return fmt.Errorf("a packet of %d bytes to %s and back: %w", length, addr, err)
	}
	return nil
}

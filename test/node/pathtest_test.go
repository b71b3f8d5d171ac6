package node_test

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/podlink"
	"github.com/waggle-net/waggle/pkg/tables/pathtests"
	"github.com/waggle-net/waggle/test/nodekit"
)

// testsOf returns the tests of a node.
func testsOf(t *testing.T, n *nodekit.Node) (rows []*pathtests.Test, text string, err error) {
	t.Helper()
	if text, err = n.Waggle(t.Context(), "db", "show", "path-tests", "-o", "json"); err == nil {
		err = json.Unmarshal([]byte(text), &rows)
	}
	return rows, text, err
}

// testedAgain waits until a node has repeated the size test of the path to another node.
func testedAgain(t *testing.T, n *nodekit.Node, name string) {
	t.Helper()
	var before *pathtests.Test
	eventually(t, func() error {
		rows, text, err := testsOf(t, n)
		for _, row := range rows {
			switch {
			case row.Node != name || row.Kind != pathtests.Size:
			case before == nil:
				before = row
			case row.Tested.After(before.Tested):
				return nil
			}
		}
		return errors.Join(err, fmt.Errorf("node %s was not tested again:\n%s", name, text))
	})
}

// pathsOf waits until a node reports the wanted states of the paths to the other nodes, by node.
func pathsOf(t *testing.T, n *nodekit.Node, want map[string]string) {
	t.Helper()
	eventually(t, func() error {
		rows, text, err := testsOf(t, n)
		if err != nil {
			return err
		}
		got := map[string]string{}
		for p := range pathtests.Paths(slices.Values(rows)) {
			got[p.Node] = p.Text()
		}
		if !maps.Equal(got, want) {
			return fmt.Errorf("%s: the paths are %v, want %v:\n%s", n.Name(), got, want, text)
		}
		return nil
	})
}

// underlay replaces the rules of the bridge between the nodes for tunnel packets. Without rules the bridge forwards all.
func underlay(t *testing.T, n *nodekit.Node, rules ...string) {
	t.Helper()
	ofTunnel := make([]string, len(rules))
	for i, rule := range rules {
		ofTunnel[i] = "udp dport 8472 " + rule
	}
	onBridge(t, n, ofTunnel...)
}

// onBridge replaces the rules of the bridge between the nodes, and returns the previous ones with their counters.
func onBridge(t *testing.T, n *nodekit.Node, rules ...string) (before string) {
	t.Helper()
	const table = "table bridge faults\n"
	commands := "delete " + table
	if len(rules) > 0 {
		commands += "add " + table + "add chain bridge faults forward { type filter hook forward priority 0 ; }\n"
	}
	for _, rule := range rules {
		commands += "add rule bridge faults forward " + rule + "\n"
	}
	if err := n.Outside(func() error {
		if err := nft("add "+table, nil); err != nil {
			return err
		}
		return errors.Join(nft("list "+table, &before), nft(commands, nil))
	}); err != nil {
		t.Fatal(err)
	}
	return before
}

// nft executes commands in one transaction. It sets output, unless that is nil.
func nft(commands string, output *string) error {
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(commands)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("nft: %w\n%s", err, out)
	}
	if output != nil {
		*output = string(out)
	}
	return nil
}

// withoutOffloads makes the device of a node compute checksums and segment packets before they are on the wire, as a NIC does.
func withoutOffloads(t *testing.T, n *nodekit.Node) {
	t.Helper()
	if err := n.Do(func() error { return withoutChecksums("eth0") }); err != nil {
		t.Fatal(err)
	}
}

// withoutChecksums disables the transmit checksum offload of a device of this namespace, so that the kernel computes the checksums.
func withoutChecksums(device string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	value := struct{ command, data uint32 }{unix.ETHTOOL_STXCSUM, 0}
	request := struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}{data: unsafe.Pointer(&value)}
	copy(request.name[:], device)
	if _, _, number := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request))); number != 0 {
		return fmt.Errorf("turn off the checksums of %s: %w", device, number)
	}
	return nil
}

// Two nodes join while the underlay between them has a fault. Each node reports the fault and detects its end.
func TestPrivilegedPathTest_FaultsOfTheUnderlay(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]struct {
		rule     string
		ipv6     bool // of the underlay
		offloads bool // the nodes keep their offloads
		segments bool // the bridge segments aggregates after the rule
		want     string
		peer     string // report of the other node, if different
		status   string
		route    int // MTU of routes that heal the path, in bytes; 0 if routes do not
	}{
		"the port is blocked": {rule: "drop", want: "blocked", status: "UDP port 8472 between this node and node node-2 is blocked (the node itself answers)"},
		"one way is blocked": {rule: "ip saddr " + nodekit.UplinkIPv4.Addr().String() + " drop", want: "one-way", peer: "blocked",
			status: "UDP port 8472 from this node to node node-2 is blocked (its packets arrive at this node)"},
		"large packets are lost":  {rule: "udp length > 1370 drop", ipv6: true, want: "1340 bytes", status: "the path to node node-2 carries 1340 of 1430 bytes", route: 1340},
		"checksums are corrupted": {rule: "@th,312,8 6 @th,528,16 set 0x1234", want: "checksum", status: "corrupts checksums of packets inside the tunnel"},
		"aggregates are lost":     {rule: "udp length > 1500 drop", offloads: true, want: "aggregates", status: "only single TCP segments from node"},
		// A device segments aggregates and writes wrong outer checksums, which receivers verify over IPv6.
		"aggregates get wrong checksums": {rule: "udp length > 1500 @th,48,16 set 0x1234", ipv6: true, offloads: true, segments: true, want: "aggregates",
			status: "turn off the segmentation by the devices of node node-2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			args := []string{"--routing-mode=tunnel", "--prometheus-serve-addr", metricsAddress}
			if fault.ipv6 {
				args = append(args, "--underlay-protocol=ipv6")
			}
			c, all := newKubeCluster(t, 2, args...)
			one, two := all[0].Node, all[1].Node
			for _, n := range c.Nodes {
				if !fault.offloads {
					withoutOffloads(t, n)
				}
			}
			if fault.segments {
				bridgeCompletes(t, c)
			}
			underlay(t, one, fault.rule)
			startAgents(t, c)
			pathsOf(t, one, map[string]string{"node-2": fault.want})
			pathsOf(t, two, map[string]string{"node-1": cmp.Or(fault.peer, fault.want)})
			shows(t, one, "status", "0/1 passed, 1 failed", fault.status)
			shows(t, one, "node list", fault.want)
			if fault.route != 0 {
				for _, family := range families {
					eventually(t, func() error { return routeWith(one, family.ipv6, fault.route) })
				}
			}
			eventually(t, func() error {
				samples, err := scrape(one)
				total := 0.0
				for name, value := range samples {
					if strings.HasPrefix(name, "waggle_path_faults") {
						total += value
					}
				}
				if err == nil && total != 1 {
					err = fmt.Errorf("%v faults in waggle_path_faults, want 1", total)
				}
				return err
			})
			underlay(t, one)
			pathsOf(t, one, map[string]string{"node-2": "ok"})
			pathsOf(t, two, map[string]string{"node-1": "ok"})
		})
	}
}

// A link between two of three nodes has a smaller MTU than the devices. The agents report the smaller size of the paths to the node behind it; the other paths
// are healthy.
func TestPrivilegedPathTest_SmallerMTUBetweenNodes(t *testing.T) {
	t.Parallel()
	c, all := newKubeCluster(t, 3, "--routing-mode=tunnel")
	one, three := all[0].Node, all[2].Node
	// A bridge forwards the 4 bytes of a VLAN header beyond its MTU.
	withMTU := func(mtu int) {
		t.Helper()
		if err := three.Outside(func() error {
			return linkNamed(three.Name(), func(link netlink.Link) error { return netlink.LinkSetMTU(link, mtu) })
		}); err != nil {
			t.Fatal(err)
		}
	}
	withMTU(1396)
	bridgesOnly(t, three)
	for _, n := range c.Nodes {
		withoutOffloads(t, n) // no device has an MTU for aggregates
	}
	startAgents(t, c)
	pathsOf(t, one, map[string]string{"node-2": "ok", "node-3": "1350 bytes"})
	pathsOf(t, three, map[string]string{"node-1": "1350 bytes", "node-2": "1350 bytes"})
	// The routes of both nodes have the fitting MTU, and so have the programs of pods: streams of the nodes and of pods pass.
	client, server := all[0].startPod(t, "client", map[string]string{"app": "client"}), all[2].startPod(t, "server", map[string]string{"app": "server"})
	for _, family := range families {
		for _, n := range []*nodekit.Node{one, three} {
			eventually(t, func() error { return routeWith(n, family.ipv6, 1350) })
		}
		if err := errors.Join(nodekit.TCP(one.Host(), server, server.Addr(family.ipv6), 1<<20), nodekit.TCP(three.Host(), client, client.Addr(family.ipv6), 1<<20),
			nodekit.TCP(client, server, server.Addr(family.ipv6), 1<<20), nodekit.TCP(server, client, client.Addr(family.ipv6), 1<<20)); err != nil {
			t.Errorf("%s: a stream: %v", family.name, err)
		}
	}
	testedAgain(t, one, "node-3") // the test ignores the routes
	pathsOf(t, one, map[string]string{"node-2": "ok", "node-3": "1350 bytes"})
	withMTU(1500)
	pathsOf(t, one, map[string]string{"node-2": "ok", "node-3": "ok"})
	for _, family := range families {
		eventually(t, func() error {
			if routeWith(one, family.ipv6, 1350) == nil {
				return fmt.Errorf("%s: a route still has the MTU 1350", family.name)
			}
			return nil
		})
	}
}

// bridgesOnly keeps netfilter away from the bridge between nodes: a loaded br_netfilter would fragment tunnel packets towards a smaller link, and only drop
// those from that link.
func bridgesOnly(t *testing.T, n *nodekit.Node) {
	t.Helper()
	for _, setting := range []string{"bridge/bridge-nf-call-iptables", "bridge/bridge-nf-call-ip6tables"} {
		if err := n.Outside(func() error { return setSysctl(setting, "0") }); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}
}

// routeWith returns an error unless a route of a node into the tunnel has the given MTU.
func routeWith(n *nodekit.Node, ipv6 bool, mtu int) error {
	return n.Do(func() error {
		link, err := netlink.LinkByName(podlink.HostDevice)
		if err != nil {
			return err
		}
		family := netlink.FAMILY_V4
		if ipv6 {
			family = netlink.FAMILY_V6
		}
		routes, err := netlink.RouteList(link, family)
		if err == nil && !slices.ContainsFunc(routes, func(r netlink.Route) bool { return r.MTU == mtu }) {
			err = fmt.Errorf("no route of %s has the MTU %d: %v", n.Name(), mtu, routes)
		}
		return err
	})
}

package node_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/google/nftables"
	"github.com/vishvananda/netlink"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/nftguard"
	"github.com/waggle-net/waggle/pkg/datapath/tc"
	"github.com/waggle-net/waggle/pkg/podlink"
	"github.com/waggle-net/waggle/pkg/tables/driftrepairs"
	"github.com/waggle-net/waggle/test/nodekit"
)

// repairNode is a node with two pods, the expected kernel state of its agent, and a foreign program for damage.
type repairNode struct {
	*nodekit.Node
	a, b    *nodekit.Pod
	podLink string // host end of a
	foreign *ebpf.Program
	before  []string

	endpoint uint32 // id of a, for damage while the agent is stopped
}

func newRepairNode(t *testing.T, args ...string) *repairNode {
	t.Helper()
	options := withMetrics()
	options.AgentArgs = append(options.AgentArgs, args...)
	n := &repairNode{Node: startNode(t, options)}
	n.a, n.b = addPod(t, n.Node, "a"), addPod(t, n.Node, "b")
	n.podLink = endsOf(t, n.a).host
	n.foreign = foreignProgram(t)
	pingBoth(t, n.a, n.b)
	// Links get addresses and pods get their settings shortly after ADD.
	eventually(t, func() (err error) {
		if n.before, err = oursState(n.Node); err != nil {
			return err
		}
		for _, fact := range []string{"rule true", "address 10.244.1.", "sysctl ipv4/conf/" + n.podLink + "/rp_filter 0", "first program"} {
			if !strings.Contains(strings.Join(n.before, "\n"), fact) {
				return fmt.Errorf("the state lacks %q: %q", fact, n.before)
			}
		}
		return nil
	})
	return n
}

// repairs returns the number of repairs of a kind.
func (n *repairNode) repairs(t *testing.T, kind driftrepairs.Kind) (count float64) {
	t.Helper()
	samples, err := scrape(n.Node)
	if err != nil {
		t.Fatal(err)
	}
	count, found := samples[fmt.Sprintf("waggle_drift_repaired_total{kind=%q}", kind)]
	if !found {
		t.Fatalf("no metric counts repairs of kind %s", kind)
	}
	return count
}

// sabotage is a foreign change on the node, and the kind under which its repair is counted.
type sabotage struct {
	name string
	kind driftrepairs.Kind
	do   func(n *repairNode) error // inside the node
}

// addressesGo lists the changes that also delete the addresses of waggle_host. The kernel announces links and addresses on different sockets: if the agent sees
// first that an address is deleted, it repairs everything and counts an address.
var addressesGo = []string{"waggle_host is set down", "waggle_host is deleted"}

// repairs returns the number of repairs of this damage.
func (s sabotage) repairs(t *testing.T, n *repairNode) float64 {
	t.Helper()
	count := n.repairs(t, s.kind)
	if slices.Contains(addressesGo, s.name) {
		count += n.repairs(t, driftrepairs.Address)
	}
	return count
}

func onLink(name string, f func(netlink.Link) error) func(*repairNode) error {
	return func(*repairNode) error { return linkNamed(name, f) }
}

func onPodLink(f func(netlink.Link) error) func(*repairNode) error {
	return func(n *repairNode) error { return linkNamed(n.podLink, f) }
}

func withTC(f func(*tc.Handle, *repairNode) error) func(*repairNode) error {
	return func(n *repairNode) error {
		handle, err := tc.Open()
		if err != nil {
			return err
		}
		defer handle.Close()
		return f(handle, n)
	}
}

func withNFT(f func(*nftables.Conn)) func(*repairNode) error {
	return func(*repairNode) error {
		conn, err := nftables.New()
		if err != nil {
			return err
		}
		f(conn)
		return conn.Flush()
	}
}

var ourNFT = &nftables.Table{Name: nftguard.TableName, Family: nftables.TableFamilyINet}

// announced lists the damage for which the kernel sends an event.
var announced = []sabotage{
	{"waggle_host is set down", driftrepairs.Link, onLink(podlink.HostDevice, netlink.LinkSetDown)},
	{"waggle_net gets another MTU", driftrepairs.Link, onLink(podlink.NetDevice, func(l netlink.Link) error { return netlink.LinkSetMTU(l, 1300) })},
	{"waggle_net is renamed", driftrepairs.Link, onLink(podlink.NetDevice, func(l netlink.Link) error {
		return errors.Join(netlink.LinkSetDown(l), netlink.LinkSetName(l, "mine"))
	})},
	{"waggle_host is deleted", driftrepairs.Link, onLink(podlink.HostDevice, netlink.LinkDel)},
	{"waggle_hold is deleted", driftrepairs.Link, onLink(podlink.HoldDevice, netlink.LinkDel)},
	{"waggle_hold is set up", driftrepairs.Link, onLink(podlink.HoldDevice, netlink.LinkSetUp)},
	{"a pod's link is set down", driftrepairs.Link, onPodLink(netlink.LinkSetDown)},
	{"a pod's link leaves the group", driftrepairs.Link, onPodLink(func(l netlink.Link) error { return netlink.LinkSetGroup(l, 0) })},
	{"a pod's link gets another MTU", driftrepairs.Link, onPodLink(func(l netlink.Link) error { return netlink.LinkSetMTU(l, 1280) })},
	{"a pod's link is renamed", driftrepairs.Link, onPodLink(func(l netlink.Link) error {
		return errors.Join(netlink.LinkSetDown(l), netlink.LinkSetName(l, "veth7"))
	})},
	{"a pod's link loses its clsact", driftrepairs.Clsact, withTC(func(h *tc.Handle, n *repairNode) error {
		return linkNamed(n.podLink, func(l netlink.Link) error { return h.DeleteClsact(l.Attrs().Index) })
	})},
	{"waggle_hold loses its clsact", driftrepairs.Clsact, withTC(func(h *tc.Handle, _ *repairNode) error {
		return linkNamed(podlink.HoldDevice, func(l netlink.Link) error { return h.DeleteClsact(l.Attrs().Index) })
	})},
	{"the filter of what pods send is deleted", driftrepairs.Filter, withTC(func(h *tc.Handle, _ *repairNode) error {
		return h.DeleteFilter(tc.Block(podlink.IngressBlock))
	})},
	{"the filter of what pods get is replaced", driftrepairs.Filter, withTC(func(h *tc.Handle, n *repairNode) error {
		return h.ReplaceFilter(tc.Block(podlink.EgressBlock), "foreign", n.foreign.FD())
	})},
	{"addresses are removed", driftrepairs.Address, onLink(podlink.HostDevice, func(l netlink.Link) error {
		addrs, err := netlink.AddrList(l, netlink.FAMILY_V4)
		return errors.Join(err, netlink.AddrDel(l, &addrs[0]))
	})},
	{"an address is added", driftrepairs.Address, onLink(podlink.HostDevice, func(l netlink.Link) error {
		addr, err := netlink.ParseAddr("203.0.113.7/32")
		return errors.Join(err, netlink.AddrAdd(l, addr))
	})},
	{"the IPv4 route is deleted", driftrepairs.Route, func(*repairNode) error { return deleteRoute(netip.MustParsePrefix("10.244.1.0/24")) }},
	{"the IPv6 route is deleted", driftrepairs.Route, func(*repairNode) error { return deleteRoute(netip.MustParsePrefix("fd00:10:244:1::/64")) }},
	{"waggle_host is flushed", driftrepairs.Route, onLink(podlink.HostDevice, flushLink)},
	{"all of nftables is flushed", driftrepairs.NFTRule, withNFT(func(c *nftables.Conn) { c.FlushRuleset() })},
	{"the rules are flushed", driftrepairs.NFTRule, withNFT(func(c *nftables.Conn) {
		c.FlushChain(&nftables.Chain{Name: nftguard.ChainName, Table: ourNFT})
	})},
	{"forwarding of IPv4 is turned off", driftrepairs.Sysctl, func(*repairNode) error { return setSysctl("ipv4/ip_forward", "0") }},
	{"forwarding of IPv6 is turned off", driftrepairs.Sysctl, func(*repairNode) error { return setSysctl("ipv6/conf/all/forwarding", "0") }},
	{"a pod's link filters sources", driftrepairs.Sysctl, func(n *repairNode) error { return setSysctl("ipv4/conf/"+n.podLink+"/rp_filter", "1") }},
	{"the pin of a tcx link is removed", driftrepairs.TCX, func(n *repairNode) error {
		return os.Remove(filepath.Join(n.BPFRoot(), "waggle", "links", "waggle_host_egress"))
	}},
	{"the pin of a map is removed", driftrepairs.Pin, func(n *repairNode) error {
		return os.Remove(filepath.Join(n.BPFRoot(), "waggle", "maps", bpf.PinName(bpf.MapIpcache, bpf.LayoutVersion(bpf.MapIpcache))))
	}},
	{"the directory of map pins is removed", driftrepairs.Pin, func(n *repairNode) error {
		err := os.RemoveAll(filepath.Join(n.BPFRoot(), "waggle", "maps"))
		if errors.Is(err, syscall.ENOTEMPTY) {
			return nil // pins are restored already
		}
		return err
	}},
}

// Damage that the kernel announces is repaired by its event: the agent of this test does not verify periodically. Traffic works afterwards, and the repair is
// counted and shown.
func TestPrivilegedRepair_DamageWithEvent_NeedsNoTimer(t *testing.T) {
	t.Parallel()
	n := newRepairNode(t, "--verify-interval=10h")
	for _, s := range announced {
		count := s.repairs(t, n)
		if err := n.Do(func() error { return s.do(n) }); err != nil {
			t.Fatalf("%s: %v", s.name, err)
		}
		n.awaitRepair(t, s)
		n.awaitCount(t, s, count)
		// A link that has just been set up drops packets until the kernel has seen its carrier.
		eventually(t, func() error {
			return errors.Join(nodekit.PingBriefly(n.a, n.b.Addr(false), 56), nodekit.PingBriefly(n.b, n.a.Addr(true), 56),
				nodekit.PingBriefly(n.Host(), n.a.Addr(false), 56), nodekit.PingBriefly(n.Host(), n.b.Addr(true), 56))
		})
	}
	n.requireShown(t)
}

// awaitRepair waits until the kernel state is as before.
func (n *repairNode) awaitRepair(t *testing.T, s sabotage) {
	t.Helper()
	eventually(t, func() error {
		now, err := oursState(n.Node)
		if err == nil {
			err = nodekit.Changes(n.before, now)
		}
		if err != nil {
			err = fmt.Errorf("%s: not repaired: %w", s.name, err)
		}
		return err
	})
}

// awaitCount waits until the metric counts the repair.
func (n *repairNode) awaitCount(t *testing.T, s sabotage, before float64) {
	t.Helper()
	eventually(t, func() error {
		if s.repairs(t, n) <= before {
			return fmt.Errorf("%s: the metric counts %v repairs of kind %s, as before", s.name, before, s.kind)
		}
		return nil
	})
}

func (n *repairNode) requireShown(t *testing.T) {
	t.Helper()
	eventually(t, func() error { // the command fails while a module is degraded for a moment
		status, err := n.Waggle(t.Context(), "status")
		if err != nil || !strings.Contains(status, "Repairs:") || strings.Contains(status, "Repairs:     none") {
			return fmt.Errorf("waggle status says (%w):\n%s", err, status)
		}
		return nil
	})
	if rows, err := n.Waggle(t.Context(), "db", "show", "drift-repairs"); err != nil || !strings.Contains(rows, "10.244.1.0/24") {
		t.Errorf("waggle db show drift-repairs says (%v):\n%s", err, rows)
	}
}

// silent lists the damage without an event.
var silent = []sabotage{
	{"a setting without announcements", driftrepairs.Sysctl, func(*repairNode) error { return setSysctl("ipv4/conf/waggle_host/accept_local", "0") }},
	{"the tcx link is detached", driftrepairs.TCX, func(n *repairNode) error {
		l, err := link.LoadPinnedLink(filepath.Join(n.BPFRoot(), "waggle", "links", "waggle_host_egress"), nil)
		if err != nil {
			return err
		}
		return errors.Join(l.Detach(), l.Close())
	}},
	{"entries of maps are changed", driftrepairs.MapEntry, func(n *repairNode) error {
		return errors.Join(
			n.onMap(bpf.MapLinks, func(m *ebpf.Map) error { return clearMap[uint32, uint32](m) }),
			n.onMap(bpf.MapEndpoints, func(m *ebpf.Map) error { return clearMap[bpf.AddrKey, bpf.EndpointRef](m) }),
			n.onMap(bpf.MapEndpointFacts, func(m *ebpf.Map) error { return m.Put(n.endpoint, bpf.EndpointFacts{}) }),
			n.onMap(bpf.MapIpcache, func(m *ebpf.Map) error {
				return m.Put(bpf.NewAddrKey(n.b.Addr(false)), bpf.IpcacheEntry{Identity: 12345})
			}))
	}},
}

// Damage without an event is repaired when the agent verifies the kernel state. The test shortens the interval.
func TestPrivilegedRepair_DamageWithoutEvent(t *testing.T) {
	t.Parallel()
	n := newRepairNode(t, "--verify-interval=2s")
	count := make(map[driftrepairs.Kind]float64)
	for _, s := range silent {
		count[s.kind] = n.repairs(t, s.kind)
	}
	id, err := strconv.Atoi(n.endpointOf("a"))
	if err != nil {
		t.Fatal(err)
	}
	n.endpoint = uint32(id)
	// The agent repairs nothing while it is stopped.
	signal := func(s syscall.Signal) {
		t.Helper()
		if err := syscall.Kill(n.AgentPID(), s); err != nil {
			t.Fatal(err)
		}
	}
	signal(syscall.SIGSTOP)
	for _, s := range silent {
		if err := n.Do(func() error { return s.do(n) }); err != nil {
			t.Errorf("%s: %v", s.name, err)
		}
	}
	if err := nodekit.PingBriefly(n.a, n.b.Addr(false), 56); err == nil {
		t.Error("without entries in the maps packets pass")
	}
	signal(syscall.SIGCONT)
	for _, s := range silent {
		n.awaitRepair(t, s)
		n.awaitCount(t, s, count[s.kind]) // entries of maps are not part of the state
	}
	eventually(t, func() error {
		return errors.Join(nodekit.PingBriefly(n.a, n.b.Addr(false), 56), nodekit.PingBriefly(n.Host(), n.b.Addr(true), 56))
	})
	pingBoth(t, n.a, n.b)
}

func (n *repairNode) onMap(name string, f func(*ebpf.Map) error) error {
	m, err := ebpf.LoadPinnedMap(filepath.Join(n.BPFRoot(), "waggle", "maps", bpf.PinName(name, bpf.LayoutVersion(name))), nil)
	if err != nil {
		return err
	}
	return errors.Join(f(m), m.Close())
}

func clearMap[K, V any](m *ebpf.Map) error {
	var (
		key   K
		value V
		keys  []K
	)
	for all := m.Iterate(); all.Next(&key, &value); {
		keys = append(keys, key)
	}
	for _, k := range keys {
		if err := m.Delete(k); err != nil {
			return err
		}
	}
	return nil
}

// endpointOf returns the id of a pod's endpoint, as text.
func (n *repairNode) endpointOf(pod string) string {
	out, _ := n.Waggle(context.Background(), "db", "get", "endpoints", "pod", "default/"+pod)
	for line := range strings.Lines(out) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] != "ID" {
			return fields[0]
		}
	}
	return ""
}

// A process that deletes Waggle's route continuously is reported with the name of the route. When it stops, the route is restored.
func TestPrivilegedRepair_ConflictIsReported(t *testing.T) {
	t.Parallel()
	n := newRepairNode(t)
	route := netip.MustParsePrefix("10.244.1.0/24")
	eventually(t, func() error {
		for range 50 {
			_ = n.Do(func() error { return deleteRoute(route) }) // most of the time the route does not exist
			time.Sleep(10 * time.Millisecond)
		}
		status, err := n.Waggle(t.Context(), "status")
		if err != nil && !strings.Contains(status, "waiting for route "+route.String()) { // without the route no pod can be attached
			return fmt.Errorf("%w:\n%s", err, status)
		}
		for _, want := range []string{"another program changes objects of the agent repeatedly", "route 254/10.244.1.0/24"} {
			if !strings.Contains(status, want) {
				return fmt.Errorf("waggle status does not say %q:\n%s", want, status)
			}
		}
		return nil
	})
	n.awaitRepair(t, sabotage{name: "the fight ends"})
	pingBoth(t, n.a, n.b)
}

// The kernel deletes the shared blocks with the last device that uses them: without pods that is waggle_hold.
func TestPrivilegedRepair_SharedBlocksOnNodeWithoutPods(t *testing.T) {
	t.Parallel()
	node := startNode(t, nodekit.Options{AgentArgs: []string{"--verify-interval=10h"}})
	n := &repairNode{Node: node}
	settled := func() error {
		var err error
		if n.before, err = oursState(node); err != nil {
			return err
		}
		up := func(line string) bool {
			return strings.HasPrefix(line, "link waggle_vxlan ") && strings.Contains(line, " up true ")
		}
		if !strings.Contains(strings.Join(n.before, "\n"), "filter 0x57470002") || !slices.ContainsFunc(n.before, up) {
			return fmt.Errorf("the blocks have no filters, or the tunnel is not up: %q", n.before)
		}
		return nil
	}
	eventually(t, settled)
	for _, s := range announced {
		if strings.HasPrefix(s.name, "waggle_hold") {
			if err := node.Do(func() error { return s.do(n) }); err != nil {
				t.Fatal(err)
			}
			n.awaitRepair(t, s)
		}
	}
	a, b := addPod(t, node, "a"), addPod(t, node, "b")
	pingBoth(t, a, b)
}

package node_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/waggle-net/waggle/test/nodekit"
)

// TestPrivilegedRange_ChangesWithRunningPods restarts the agent on a Node that has other pod CIDRs. A pod of the old ranges keeps working beside pods of the
// new ones, and leaves no state when it is deleted.
func TestPrivilegedRange_ChangesWithRunningPods(t *testing.T) {
	t.Parallel()
	node := startNode(t, nodekit.Options{})
	a := addPod(t, node, "a")
	cached(t, node, a)
	stop := pingOn(t, a, nodekit.UplinkIPv4.Addr(), nodekit.UplinkIPv6.Addr())
	defer stop()
	if err := errors.Join(node.StopAgent(t.Context()), writeNodeCIDRs(node, "10.99.0.0/24", "fd00:99::/64"), node.StartAgent()); err != nil {
		t.Fatal(err)
	}
	waitReady(t, node)
	cached(t, node, a)
	b := addPod(t, node, "b")
	cached(t, node, b)
	stop()
	for i, prefix := range []string{"10.99.0.0/24", "fd00:99::/64"} {
		family := families[i]
		if !netip.MustParsePrefix(prefix).Contains(b.Addr(family.ipv6)) || netip.MustParsePrefix(prefix).Contains(a.Addr(family.ipv6)) {
			t.Errorf("the pods have %s and %s", a.Addr(family.ipv6), b.Addr(family.ipv6))
		}
	}
	reachEachOther(t, node, a, b)

	// A second restart has only the state on disk, and the pod resolves its gateway again.
	if err := errors.Join(node.KillAgent(t.Context()), node.StartAgent()); err != nil {
		t.Fatal(err)
	}
	waitReady(t, node)
	if err := a.Check(t.Context()); err != nil {
		t.Error(err)
	}
	cached(t, node, a)
	forgetNeighbours(t, a)
	reachEachOther(t, node, a, b)

	addrs := []string{a.Addr(false).String(), a.Addr(true).String()}
	if err := errors.Join(a.Detach(t.Context()), a.Close()); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error { return nothingOf(t, node, addrs) })
	if err := nodekit.Ping(b, b.Gateway(false), 56); err != nil {
		t.Error(err)
	}
}

// pingOn pings addresses from a pod, one after the other, until the returned function is called. Each ping must get a reply.
func pingOn(t *testing.T, from *nodekit.Pod, addrs ...netip.Addr) (stop func()) {
	t.Helper()
	ending, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for i := 0; ; i++ {
			select {
			case <-ending:
				return
			default:
			}
			if err := nodekit.Ping(from, addrs[i%len(addrs)], 56); err != nil {
				t.Errorf("ping %d: %v", i, err)
			}
		}
	}()
	return sync.OnceFunc(func() {
		close(ending)
		<-ended
	})
}

// cached waits until a pod's addresses are in the table of the ipcache and in the kernel's map.
func cached(t *testing.T, node *nodekit.Node, pod *nodekit.Pod) {
	t.Helper()
	eventually(t, func() error {
		for _, command := range [][]string{{"db", "show", "ipcache"}, {"map", "get", "ipcache"}} {
			rows, err := node.Waggle(t.Context(), command...)
			if err != nil {
				return err
			}
			for _, family := range families {
				if addr := pod.Addr(family.ipv6).String(); !strings.Contains(rows, addr+" ") && !strings.Contains(rows, addr+"/") {
					return fmt.Errorf("%s is not in %v:\n%s", addr, command, rows)
				}
			}
		}
		return nil
	})
}

// writeNodeCIDRs writes the Node with other pod CIDRs.
func writeNodeCIDRs(node *nodekit.Node, cidrs ...string) error {
	text := fmt.Sprintf("apiVersion: v1\nkind: Node\nmetadata:\n  name: node-1\nspec:\n  podCIDRs: [\"%s\"]\n"+
		"status:\n  addresses:\n  - {type: InternalIP, address: %s}\n", strings.Join(cidrs, `", "`), nodekit.UplinkIPv4.Addr())
	return os.WriteFile(filepath.Join(node.ManifestsDir(), "node.yaml"), []byte(text), 0o644)
}

// reachEachOther tests each direction between two pods, the node, and the host outside where it has routes.
func reachEachOther(t *testing.T, node *nodekit.Node, a, b *nodekit.Pod) {
	t.Helper()
	for _, family := range families {
		uplink := nodekit.UplinkIPv4.Addr()
		if family.ipv6 {
			uplink = nodekit.UplinkIPv6.Addr()
		}
		for name, err := range map[string]error{
			"a to b":    nodekit.TCP(a, b, b.Addr(family.ipv6), 10_000),
			"b to a":    nodekit.TCP(b, a, a.Addr(family.ipv6), 10_000),
			"a to node": nodekit.TCP(a, node.Host(), uplink, 10_000),
			"node to a": nodekit.TCP(node.Host(), a, a.Addr(family.ipv6), 10_000),
			"node to b": nodekit.TCP(node.Host(), b, b.Addr(family.ipv6), 10_000),
		} {
			if err != nil {
				t.Errorf("%s over %s: %v", name, family.name, err)
			}
		}
	}
}

// nothingOf returns an error if addresses remain in the node's tables or routes; rows in quarantine are allowed.
func nothingOf(t *testing.T, node *nodekit.Node, addrs []string) error {
	t.Helper()
	facts, err := node.Snapshot()
	if err != nil {
		return err
	}
	text := strings.Join(facts, "\n")
	for _, table := range []string{"desired-routes", "endpoints", "bpf-endpoints", "ipcache"} {
		rows, err := node.Waggle(t.Context(), "db", "show", table)
		if err != nil {
			return err
		}
		text += table + ":\n" + rows
	}
	for _, addr := range addrs {
		if strings.Contains(text, addr) {
			return fmt.Errorf("%s is in:\n%s", addr, text)
		}
	}
	return nil
}

// forgetNeighbours deletes the neighbour entries of a pod, so that it resolves its gateway again.
func forgetNeighbours(t *testing.T, pod *nodekit.Pod) {
	t.Helper()
	if err := pod.Do(func() error {
		link, err := netlink.LinkByName(pod.IfName)
		if err != nil {
			return err
		}
		all, err := netlink.NeighList(link.Attrs().Index, netlink.FAMILY_ALL)
		for _, n := range all {
			if n.State&netlink.NUD_NOARP == 0 {
				err = errors.Join(err, netlink.NeighDel(&n))
			}
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

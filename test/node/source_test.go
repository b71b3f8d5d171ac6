package node_test

import (
	"errors"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/waggle-net/waggle/pkg/datapath/nftguard"
	"github.com/waggle-net/waggle/test/nodekit"
)

// An address of the node is valid only as the node's own source: packets of a machine outside with this source reach neither a pod nor the node, also where the
// kernel does not check itself: IPv6, and IPv4 with accept_local.
func TestPrivilegedSource_NodeAddressFromOutsideIsDropped(t *testing.T) {
	t.Parallel()
	node := startNode(t, nodekit.Options{})
	pod := addPod(t, node, "a")
	if err := errors.Join(
		node.Do(func() error {
			var errs []error
			for _, device := range []string{"all", "eth0"} {
				for setting, value := range map[string]string{"accept_local": "1", "rp_filter": "0"} {
					errs = append(errs, os.WriteFile("/proc/sys/net/ipv4/conf/"+device+"/"+setting, []byte(value), 0))
				}
			}
			return errors.Join(errs...)
		}),
		node.RouteFromOutside("10.244.1.0/24", "fd00:10:244:1::/64"),
	); err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		outside, ofNode := nodekit.OutsideIPv4.Addr(), nodekit.UplinkIPv4.Addr()
		if family.ipv6 {
			outside, ofNode = nodekit.OutsideIPv6.Addr(), nodekit.UplinkIPv6.Addr()
		}
		router := routerOf(t, node, family.ipv6)
		for name, target := range map[string]struct {
			at nodekit.NetNS
			ip netip.Addr
		}{"pod": {pod, pod.Addr(family.ipv6)}, "node": {node.Host(), ofNode}} {
			received := nodekit.Listen(t, target.at, target.ip, 2222)
			before := sourceDrops(t, node)
			for _, lie := range []netip.Addr{ofNode, router} {
				if err := nodekit.Spoof(node.OutsideHost(), lie, target.ip); err != nil {
					t.Fatal(err)
				}
			}
			// The valid packet is sent last: when it arrives, no spoofed packet is in flight.
			if err := nodekit.Spoof(node.OutsideHost(), outside, target.ip); err != nil {
				t.Fatal(err)
			}
			select {
			case from := <-received:
				if from != outside {
					t.Errorf("%s: the %s got a datagram from %s", family.name, name, from)
				}
			case <-time.After(awaitFor):
				t.Errorf("%s: the %s got nothing from outside", family.name, name)
			}
			if got := sourceDrops(t, node) - before; got != 2 {
				t.Errorf("%s: %d packets to the %s were counted, want 2", family.name, got, name)
			}
		}
		if err := errors.Join(nodekit.Ping(node.Host(), pod.Addr(family.ipv6), 56), nodekit.Ping(pod, ofNode, 56),
			nodekit.Ping(node.Host(), ofNode, 56), nodekit.Ping(node.Host(), router, 56), nodekit.Ping(pod, router, 56)); err != nil {
			t.Error(err)
		}
	}
	if got := sourceDrops(t, node); got != 8 {
		t.Errorf("%d packets were counted in all, want those 8", got)
	}
}

func sourceDrops(t *testing.T, node *nodekit.Node) uint64 {
	t.Helper()
	var dropped nftguard.Dropped
	if err := node.Do(func() (err error) {
		dropped, err = nftguard.ReadDropped()
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return dropped.NodeSource.Packets
}

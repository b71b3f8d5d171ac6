package node_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/waggle-net/waggle/test/nodekit"
)

// families names the sub-tests of the two families.
var families = []struct {
	name string
	ipv6 bool
}{{"IPv4", false}, {"IPv6", true}}

func TestPrivilegedTraffic_BetweenPodsNodeAndOutside(t *testing.T) {
	t.Parallel()
	node := startNode(t, nodekit.Options{})
	a, b := addPod(t, node, "a"), addPod(t, node, "b")
	routeBack(t, node)
	for _, family := range families {
		nodeIP, outside := nodekit.UplinkIPv4.Addr(), nodekit.OutsideIPv4.Addr()
		if family.ipv6 {
			nodeIP, outside = nodekit.UplinkIPv6.Addr(), nodekit.OutsideIPv6.Addr()
		}
		for _, way := range []struct {
			name     string
			from, to nodekit.NetNS
			addr     netip.Addr
		}{
			{"pod to pod", a, b, b.Addr(family.ipv6)},
			{"pod to itself", a, a, a.Addr(family.ipv6)},
			{"pod to its gateway", a, node.Host(), a.Gateway(family.ipv6)},
			{"pod to the node's address", a, node.Host(), nodeIP},
			{"node to pod", node.Host(), a, a.Addr(family.ipv6)},
			{"pod to outside", a, node.OutsideHost(), outside},
			{"outside to pod", node.OutsideHost(), b, b.Addr(family.ipv6)},
		} {
			t.Run(family.name+" "+way.name, func(t *testing.T) {
				if err := nodekit.Ping(way.from, way.addr, 56); err != nil {
					t.Error(err)
				}
				if err := nodekit.Ping(way.from, way.addr, 4000); err != nil {
					t.Errorf("in fragments: %v", err)
				}
				if err := nodekit.TCP(way.from, way.to, way.addr, 1<<20); err != nil {
					t.Error(err)
				}
				for _, size := range []int{100, 9000} {
					if err := nodekit.UDP(way.from, way.to, way.addr, size); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
}

func TestPrivilegedTraffic_ClosedPortAnswersWithICMP(t *testing.T) {
	t.Parallel()
	node := startNode(t, nodekit.Options{})
	a, b := addPod(t, node, "a"), addPod(t, node, "b")
	for _, family := range families {
		t.Run(family.name, func(t *testing.T) {
			for _, addr := range []netip.Addr{b.Addr(family.ipv6), a.Gateway(family.ipv6)} {
				if err := nodekit.ClosedPort(a, addr); err != nil {
					t.Errorf("towards %s: %v", addr, err)
				}
			}
		})
	}
}

func TestPrivilegedSpoof_IsDroppedCountedAndShown(t *testing.T) {
	t.Parallel()
	node := startNode(t, nodekit.Options{})
	a, b := addPod(t, node, "a"), addPod(t, node, "b")
	for _, family := range families {
		t.Run(family.name, func(t *testing.T) {
			spoofed := b.Addr(family.ipv6).Next()
			if spoofed == a.Addr(family.ipv6) {
				spoofed = spoofed.Next() // this would not be spoofed
			}
			received := nodekit.Listen(t, b, b.Addr(family.ipv6), 2222)
			if err := nodekit.Spoof(a, spoofed, b.Addr(family.ipv6)); err != nil {
				t.Fatal(err)
			}
			eventually(t, func() error {
				text, err := node.Waggle(t.Context(), "drops")
				if err == nil && !(strings.Contains(text, "Invalid source ip") && strings.Contains(text, spoofed.String())) {
					err = fmt.Errorf("the drop of %s is not shown:\n%s", spoofed, text)
				}
				return err
			})
			// The valid packet sent after the spoofed one arrives, and is the first one: the spoofed packet did not arrive.
			if err := nodekit.Spoof(a, a.Addr(family.ipv6), b.Addr(family.ipv6)); err != nil {
				t.Fatal(err)
			}
			select {
			case from := <-received:
				if from != a.Addr(family.ipv6) {
					t.Errorf("the first packet came from %s, want %s", from, a.Addr(family.ipv6))
				}
			case <-time.After(answerTimeout):
				t.Error("the honest packet did not arrive")
			}
		})
	}
}

// routeBack adds routes to the pods on the host outside, as a router of the network has.
func routeBack(t *testing.T, node *nodekit.Node) {
	t.Helper()
	if err := node.RouteFromOutside("10.244.1.0/24", "fd00:10:244:1::/64"); err != nil {
		t.Fatal(err)
	}
}

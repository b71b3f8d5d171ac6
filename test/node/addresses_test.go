package node_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/waggle-net/waggle/test/nodekit"
)

func TestPrivilegedRanges_AllSizes(t *testing.T) {
	t.Parallel()
	for _, ranges := range [][2]string{{"10.5.0.0/16", "fd00:5::/112"}, {"10.6.7.0/24", "fd00:6::/64"}} {
		t.Run(strings.ReplaceAll(ranges[0]+" "+ranges[1], "/", "-"), func(t *testing.T) {
			t.Parallel()
			node := startNode(t, nodekit.Options{IPv4CIDR: ranges[0], IPv6CIDR: ranges[1]})
			a, b := addPod(t, node, "a"), addPod(t, node, "b")
			for i, family := range families {
				prefix := netip.MustParsePrefix(ranges[i])
				for _, pod := range []*nodekit.Pod{a, b} {
					if addr := pod.Addr(family.ipv6); !prefix.Contains(addr) || addr == prefix.Addr() || addr == pod.Gateway(family.ipv6) {
						t.Errorf("%s has %s of %s", pod.Name, addr, prefix)
					}
				}
				if err := errors.Join(nodekit.Ping(a, b.Addr(family.ipv6), 56), nodekit.Ping(a, a.Gateway(family.ipv6), 56)); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// TestPrivilegedRouter_IsKept uses a router that is not the first address of its range, so that the agent can find the router only in its saved state.
func TestPrivilegedRouter_IsKept(t *testing.T) {
	t.Parallel()
	node := startNode(t, nodekit.Options{IPv4CIDR: "10.244.1.128/25", IPv6CIDR: "fd00:10:244:1:8000::/65"})
	writeNode(t, node, "  podCIDRs: [10.244.1.0/24, \"fd00:10:244:1::/64\"]\n")
	requireRangesKept(t, node, "while-the-agent-runs")
	for name, between := range map[string]func() error{
		"over-a-restart": func() error { return nil },
		"by-waggle-host": func() error { return os.RemoveAll(node.StateDir()) }, // endpoints are lost as well
	} {
		if err := errors.Join(node.StopAgent(t.Context()), between(), node.StartAgent()); err != nil {
			t.Fatal(err)
		}
		waitReady(t, node)
		requireRangesKept(t, node, name)
	}
}

// requireRangesKept requires the wide ranges, the routers of the narrow ranges, and a new pod that reaches these routers.
func requireRangesKept(t *testing.T, node *nodekit.Node, name string) {
	t.Helper()
	eventually(t, func() error {
		text, err := node.Waggle(t.Context(), "db", "show", "local-node")
		for _, want := range []string{"10.244.1.0/24", "10.244.1.129", "fd00:10:244:1::/64", "fd00:10:244:1:8000::1"} {
			if err == nil && !strings.Contains(text, want) {
				err = fmt.Errorf("%s: %s is not in:\n%s", name, want, text)
			}
		}
		return err
	})
	pod := addPod(t, node, name)
	for i, router := range []string{"10.244.1.129", "fd00:10:244:1:8000::1"} {
		if pod.Gateway(families[i].ipv6) != netip.MustParseAddr(router) {
			t.Errorf("%s: the pod's gateway is %s", name, pod.Gateway(families[i].ipv6))
		}
		if err := nodekit.Ping(pod, netip.MustParseAddr(router), 56); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestPrivilegedCIDRs_AreShownWithReasons(t *testing.T) {
	t.Parallel()
	node := newNode(t, nodekit.Options{})
	writeNode(t, node, "  podCIDR: 10.2.0.0/24\n  podCIDRs: [10.300.0.0/24, 10.1.0.0/24]\n")
	if err := node.StartAgent(); err != nil {
		t.Fatal(err)
	}
	waitReady(t, node)
	show := func(rows ...string) {
		t.Helper()
		eventually(t, func() error {
			text, err := node.Waggle(t.Context(), "db", "show", "node-cidrs")
			if err != nil {
				return err
			}
			lines := map[string]bool{}
			for line := range strings.Lines(text) {
				lines[strings.Join(strings.Fields(line), " ")] = true
			}
			for _, row := range rows {
				if !lines[row] {
					return fmt.Errorf("%q is not in:\n%s", row, text)
				}
			}
			return nil
		})
	}
	show("ipv4 spec.podCIDRs[1] 10.1.0.0/24 true chosen: the first acceptable candidate",
		"ipv4 spec.podCIDR 10.2.0.0/24 false not used: spec.podCIDRs[1] has precedence",
		"ipv4 network.cilium.io/ipv4-pod-cidr 10.3.0.0/24 false not used: spec.podCIDRs[1] has precedence",
		"ipv6 io.cilium.network.ipv6-pod-cidr fd00:3::/64 true chosen: the first acceptable candidate")
	pod := addPod(t, node, "a")
	if addr := pod.Addr(false); !netip.MustParsePrefix("10.1.0.0/24").Contains(addr) {
		t.Errorf("the pod has %s", addr)
	}
	if addr := pod.Addr(true); !netip.MustParsePrefix("fd00:3::/64").Contains(addr) {
		t.Errorf("the pod has %s", addr)
	}
}

// writeNode replaces the manifest of the Node. The argument spec holds the lines of its spec.
func writeNode(t *testing.T, node *nodekit.Node, spec string) {
	t.Helper()
	manifest := fmt.Sprintf("apiVersion: v1\nkind: Node\nmetadata:\n  name: node-1\n  annotations:\n"+
		"    network.cilium.io/ipv4-pod-cidr: 10.3.0.0/24\n    io.cilium.network.ipv6-pod-cidr: fd00:3::/64\nspec:\n%s"+
		"status:\n  addresses:\n  - {type: InternalIP, address: %s}\n", spec, nodekit.UplinkIPv4.Addr())
	if err := os.WriteFile(filepath.Join(node.ManifestsDir(), "node.yaml"), []byte(manifest), 0o644); err != nil {
		t.Fatal(err)
	}
}

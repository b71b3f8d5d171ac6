package waggle_test

import (
	"net/netip"
	"testing"

	"github.com/waggle-net/waggle/test/kube"
)

// sharing is a test with its own node in a shared cluster.
type sharing struct {
	name string
	test func(t *testing.T, shared *kube.Cluster)
}

// share runs tests in parallel. They start when the calling test, which owns the cluster, has returned.
func share(t *testing.T, shared *kube.Cluster, tests []sharing) {
	for _, s := range tests {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			s.test(t, shared)
		})
	}
}

// TestPrivilegedPrepared runs tests of the agent as a process, on a shared cluster with Waggle's resource definitions. The controller manager allocates no
// CIDRs, because some tests give a Node other ones or none.
func TestPrivilegedPrepared(t *testing.T) {
	t.Parallel()
	shared, _ := prepared(t, kube.Options{Nodes: kube.NoNodes})
	share(t, shared, []sharing{
		{"PodCIDR_FromEachSource", podCIDRFromEachSource},
		{"PodCIDR_ChangesUnderRunningPods", podCIDRChanges},
		{"Order_NoPodStartsUnmanaged", noPodStartsUnmanaged},
		{"Labels_CreateIdentities", labelsCreateIdentities},
		{"Unmanaged_PodsOfPreviousNetwork_AreListed", podsOfPreviousNetwork},
		{"Node_RegisteredAgain", registeredAgain},
		{"Node_WithoutInternalIP", withoutInternalIP},
		{"Conflist_BesideOtherConfigurations", besideOtherConfigurations},
		{"NodeName_IsRequired", nodeNameIsRequired},
	})
}

// ranged adds a node with pod CIDRs of both families.
func ranged(t *testing.T, shared *kube.Cluster, options kube.NodeOptions) (*kube.Cluster, *kube.Node) {
	t.Helper()
	c, n := shared.Tenant(t, options)
	assign(t, n, podCIDRs(n, 0)...)
	return c, n
}

// podCIDRs returns ranges that no other node has: IPv4, then IPv6. A Node that is registered again uses another turn.
func podCIDRs(n *kube.Node, turn byte) []string {
	host := netip.MustParseAddr(n.IPv4).As4()[3]
	return []string{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244 + turn, host, 0}), 24).String(),
		netip.PrefixFrom(netip.AddrFrom16([16]byte{0: 0xfd, 3: 0x10, 4: 2, 5: 0x44 + turn, 7: host}), 64).String()}
}

func assign(t *testing.T, n *kube.Node, cidrs ...string) {
	t.Helper()
	if err := n.AssignPodCIDRs(t.Context(), cidrs...); err != nil {
		t.Fatal(err)
	}
}

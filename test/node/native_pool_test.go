package node_test

import (
	"encoding/json"
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/test/nodekit"
)

// The CIDRs from which the cluster role would allocate the ranges of the nodes.
const (
	poolIPv4 = "10.244.0.0/16"
	poolIPv6 = "fd00:10:244::/48"
)

// A node joins while the API server of another node is unavailable, and the network routes their pods. The other node knows neither the joined node nor its range,
// but the range is in the cluster pool: the pods of the joined node are not the entity world, no CIDR matches them, and packets to them are not masqueraded.
func TestPrivilegedNative_PodsOfUnknownNode(t *testing.T) {
	t.Parallel()
	c, all := newKubeCluster(t, 3, "--routing-mode=native")
	one, two, three := all[0], all[1], all[2]
	pool := []string{"--cluster-pool-ipv4-cidr=" + poolIPv4, "--cluster-pool-ipv6-cidr=" + poolIPv6}
	one.useClusterPool(pool...)
	two.useClusterPool(pool...)
	one.server.Remove(kubeapi.Nodes, "", three.Name())
	for _, n := range c.Nodes[:2] {
		if err := n.StartAgent(); err != nil {
			t.Fatal(err)
		}
	}
	waitReady(t, one.Node)
	waitReady(t, two.Node)
	for _, ends := range [][2]kubeNode{{two, three}, {three, two}, {one, three}, {three, one}} {
		ends[0].routeTo(t, ends[1])
	}
	p := newNodePair(t, two, three)
	two.server.Put(&ciliumv2.CiliumNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "ranged"}, Spec: json.RawMessage(
		`{"endpointSelector": {"matchLabels": {"app": "ranged"}}, "ingress": [{"fromCIDR": ["` + poolIPv4 + `", "` + poolIPv6 + `", "0.0.0.0/0", "::/0"]}],
		"egress": [{"toCIDR": ["` + poolIPv4 + `", "` + poolIPv6 + `", "0.0.0.0/0", "::/0"]}]}`)})
	two.awaitRow(t, "policies", "default/ranged")
	ranged := two.startPod(t, "ranged", map[string]string{"app": "ranged"})
	open := two.startPod(t, "open", map[string]string{"app": "open"})

	two.server.Stop()
	three.useClusterPool(pool...)
	if err := three.StartAgent(); err != nil {
		t.Fatal(err)
	}
	waitReady(t, three.Node)
	late := three.startPod(t, "late", map[string]string{"app": "late"})
	three.identityOfCluster(t, late)
	verdicts := func(t *testing.T) {
		for _, family := range families { // the pods of policies are not isolated for another reason
			for _, pod := range []*nodekit.Pod{p.worldly, ranged} {
				if err := nodekit.Ping(pod, outsideAddr(family.ipv6), 56); err != nil {
					t.Errorf("%s: pod %s to the world: %v", family.name, pod.Name, err)
				}
			}
		}
		p.checkNotWorld(t, late)
		checkDenied(t, [][2]*nodekit.Pod{{late, ranged}, {ranged, late}})
		p.checkReaches(t, late, open)
	}
	t.Run("the API server is unreachable", verdicts)
	if err := two.StopAgent(t.Context()); err != nil { // a killed agent may leave a copy of the objects without the last identities
		t.Fatal(err)
	}
	t.Run("the agent is stopped", verdicts)
	if err := two.StartAgent(); err != nil {
		t.Fatal(err)
	}
	waitReady(t, two.Node)
	t.Run("the agent runs again", func(t *testing.T) {
		two.awaitNoRow(t, "nodes", three.Name())
		verdicts(t)
	})
	if err := two.Do(func() error { two.server.Start(t); return nil }); err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		awaitIdentity(t, two, late.Addr(family.ipv6), three.identityOf(t, late).Identity)
	}
	t.Run("the node has learned the pod", verdicts)
}

// routeTo adds the routes of the network to the pods of another node.
func (n kubeNode) routeTo(t *testing.T, to kubeNode) {
	t.Helper()
	if err := n.Do(func() error {
		return linkNamed("eth0", func(link netlink.Link) error {
			for _, text := range to.PodRanges() {
				dst := netip.MustParsePrefix(text).Masked()
				route := &netlink.Route{LinkIndex: link.Attrs().Index, Gw: to.UplinkAddr(dst.Addr().Is6()).AsSlice(),
					Dst: &net.IPNet{IP: dst.Addr().AsSlice(), Mask: net.CIDRMask(dst.Bits(), dst.Addr().BitLen())}}
				if err := netlink.RouteAdd(route); err != nil {
					return err
				}
			}
			return nil
		})
	}); err != nil {
		t.Fatal(err)
	}
}

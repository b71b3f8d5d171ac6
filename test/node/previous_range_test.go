package node_test

import (
	"encoding/json"
	"errors"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/test/nodekit"
)

// The range of a node changes while its pods run. These pods keep their identities on the other node, and their addresses towards its pods; pods of the new
// range are added. When the last pod of the previous range is deleted, the node no longer has that range.
func TestPrivilegedNative_PodsOfPreviousRange(t *testing.T) {
	t.Parallel()
	forEachIPAM(t, func(t *testing.T, ipam string) { podsOfPreviousRange(t, startNativePair(t, ipam)) })
}

func TestPrivilegedTunnel_PodsOfPreviousRange(t *testing.T) {
	t.Parallel()
	forEachIPAM(t, func(t *testing.T, ipam string) { podsOfPreviousRange(t, startTunnelPair(t, ipam)) })
}

func podsOfPreviousRange(t *testing.T, p nodePair) {
	t.Helper()
	one, two := p.near, p.far
	one.server.Put(&ciliumv2.CiliumNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "server"}, Spec: json.RawMessage(
		`{"endpointSelector": {"matchLabels": {"app": "server"}}, "ingress": [{"fromEndpoints": [{"matchLabels": {"app": "client"}}]}]}`)})
	one.awaitRow(t, "policies", "default/server")
	server := one.startPod(t, "server", map[string]string{"app": "server"})
	clients := []*nodekit.Pod{two.startPod(t, "client", map[string]string{"app": "client"})}
	other := two.startPod(t, "other", map[string]string{"app": "other"})
	verdicts := func(t *testing.T) {
		for _, pod := range append(clients, other) {
			for _, family := range families {
				awaitIdentity(t, one, pod.Addr(family.ipv6), two.identityOf(t, pod).Identity)
			}
		}
		for _, client := range clients {
			p.checkReaches(t, client, server)
		}
		checkDenied(t, [][2]*nodekit.Pod{{other, server}})
		p.checkNotWorld(t, other)
	}
	t.Run("before", verdicts)

	ranges := []string{"10.99.0.0/24", "fd00:99::/64"}
	object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: two.Name(), UID: "another"}, Spec: corev1.NodeSpec{PodCIDRs: ranges}}
	for _, family := range families {
		object.Status.Addresses = append(object.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: two.UplinkAddr(family.ipv6).String()})
	}
	if p.ipam == agentconfig.IPAMKubernetes {
		two.server.Put(object)
	}
	if err := two.StopAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	if p.ipam == agentconfig.IPAMClusterPool { // while the agent does not write the CiliumNode
		two.putRanges(ranges...)
	}
	if err := two.StartAgent(); err != nil {
		t.Fatal(err)
	}
	waitReady(t, two.Node)
	one.awaitRow(t, "nodes", "fd00:99::/64")
	p.awaitFormer(t)
	t.Run("the range is a previous one", verdicts)
	late := two.startPod(t, "late", map[string]string{"app": "client"})
	if !netip.MustParsePrefix("10.99.0.0/24").Contains(late.Addr(false)) {
		t.Fatalf("the new pod has the address %s", late.Addr(false))
	}
	clients = append(clients, late)
	t.Run("a pod of the new range", verdicts)
	for _, pod := range []*nodekit.Pod{clients[0], other} {
		if err := errors.Join(pod.Detach(t.Context()), pod.Close()); err != nil {
			t.Fatal(err)
		}
	}
	one.awaitNoRow(t, "nodes", "(former)")
}

package node_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/test/nodekit"
)

// The range of a node changes while its pods run. These pods keep their identities on the other node, and their addresses towards its pods; pods of the new
// range are added. When the last pod of the previous range is deleted, the node no longer has that range.
func TestPrivilegedNative_PodsOfPreviousRange(t *testing.T) {
	t.Parallel()
	podsOfPreviousRange(t, startKubeCluster(t, 2, noProvisional, "--routing-mode=native", "--auto-direct-node-routes"))
}

func TestPrivilegedTunnel_PodsOfPreviousRange(t *testing.T) {
	t.Parallel()
	all := startKubeCluster(t, 2, noProvisional, "--routing-mode=tunnel")
	for _, n := range all {
		awaitTunnel(t, n.Node, 2)
	}
	podsOfPreviousRange(t, all)
}

func podsOfPreviousRange(t *testing.T, all []kubeNode) {
	t.Helper()
	one, two := all[0], all[1]
	putWorldly(one)
	one.server.Put(&ciliumv2.CiliumNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "server"}, Spec: json.RawMessage(
		`{"endpointSelector": {"matchLabels": {"app": "server"}}, "ingress": [{"fromEndpoints": [{"matchLabels": {"app": "client"}}]}]}`)})
	one.awaitRow(t, "policies", "default/server")
	server := one.startPod(t, "server", map[string]string{"app": "server"})
	worldly := one.startPod(t, "worldly", map[string]string{"app": "worldly"})
	clients := []*nodekit.Pod{two.startPod(t, "client", map[string]string{"app": "client"})}
	other := two.startPod(t, "other", map[string]string{"app": "other"})
	verdicts := func(t *testing.T) {
		for _, pod := range append(clients, other) {
			for _, family := range families {
				awaitIdentity(t, one, pod.Addr(family.ipv6), two.identityOf(t, pod).Identity)
			}
		}
		for _, client := range clients {
			if err := sendUnderOwnAddress(t, server, one, client); err != nil {
				t.Error(err)
			}
		}
		for _, family := range families {
			addr := server.Addr(family.ipv6)
			for _, client := range clients {
				if err := errors.Join(nodekit.Ping(client, addr, 56), nodekit.TCP(client, server, addr, 1<<16)); err != nil {
					t.Errorf("%s: pod %s: %v", family.name, client.Name, err)
				}
			}
			if nodekit.PingBriefly(other, addr, 56) == nil {
				t.Errorf("%s: the other pod reaches the server", family.name)
			}
			if nodekit.PingBriefly(other, worldly.Addr(family.ipv6), 56) == nil || nodekit.PingBriefly(worldly, other.Addr(family.ipv6), 56) == nil {
				t.Errorf("%s: a pod passes for the world", family.name)
			}
		}
	}
	t.Run("before", verdicts)

	object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: two.Name(), UID: "another"}, Spec: corev1.NodeSpec{PodCIDRs: []string{"10.99.0.0/24", "fd00:99::/64"}}}
	for _, family := range families {
		object.Status.Addresses = append(object.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: two.UplinkAddr(family.ipv6).String()})
	}
	two.server.Put(object)
	if err := errors.Join(two.StopAgent(t.Context()), two.StartAgent()); err != nil {
		t.Fatal(err)
	}
	waitReady(t, two.Node)
	one.awaitRow(t, "nodes", "fd00:99::/64")
	for _, text := range two.PodRanges() {
		one.awaitRow(t, "nodes", netip.MustParsePrefix(text).Masked().String()+"(former)")
	}
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
	eventually(t, func() error {
		out, err := one.Waggle(t.Context(), "db", "show", "nodes")
		if err == nil && strings.Contains(out, "(former)") {
			err = fmt.Errorf("a node has a former range:\n%s", out)
		}
		return err
	})
}

package node_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/test/nodekit"
)

// Without a tunnel, a node does not treat pods of another node that it does not know yet as the entity world, and packets to them do not get the address of
// this node.
func TestPrivilegedNative_UnknownRemotePods(t *testing.T) {
	t.Parallel()
	all := startKubeCluster(t, 2, noProvisional, "--routing-mode=native", "--auto-direct-node-routes")
	one, two := all[0], all[1]
	putWorldly(two)
	two.awaitRow(t, "policies", "default/worldly")
	worldly := two.startPod(t, "worldly", map[string]string{"app": "worldly"})
	open := two.startPod(t, "open", map[string]string{"app": "open"})
	two.server.Stop()
	late := one.startPod(t, "late", map[string]string{"app": "late"})
	one.identityOfCluster(t, late)
	verdicts := func(t *testing.T) {
		if err := sendUnderOwnAddress(t, open, two, late); err != nil {
			t.Error(err)
		}
		for _, family := range families {
			if err := errors.Join(nodekit.Ping(late, open.Addr(family.ipv6), 56), nodekit.TCP(late, open, open.Addr(family.ipv6), 1<<16)); err != nil {
				t.Errorf("%s: %v", family.name, err)
			}
			if nodekit.PingBriefly(late, worldly.Addr(family.ipv6), 56) == nil {
				t.Errorf("%s: the pod passes for the world", family.name)
			}
			if nodekit.PingBriefly(worldly, late.Addr(family.ipv6), 56) == nil {
				t.Errorf("%s: a pod that may send to the world alone reaches the pod", family.name)
			}
		}
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
	t.Run("the agent runs again", verdicts)
	if err := two.Do(func() error { two.server.Start(t); return nil }); err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		awaitIdentity(t, two, late.Addr(family.ipv6), one.identityOf(t, late).Identity)
	}
	t.Run("the node has learned the pod", verdicts)
}

// putWorldly creates policies under which pods with the label app=worldly exchange packets with the entity world only.
func putWorldly(n kubeNode) {
	n.server.Put(&ciliumv2.CiliumNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "worldly"}, Spec: json.RawMessage(
		`{"endpointSelector": {"matchLabels": {"app": "worldly"}}, "ingress": [{"fromEntities": ["world"]}], "egress": [{"toEntities": ["world"]}]}`)})
}

// sendUnderOwnAddress sends datagrams to a pod of another node in both families. It returns an error when the pod receives the address of the sender's node.
func sendUnderOwnAddress(t *testing.T, from *nodekit.Pod, node kubeNode, to *nodekit.Pod) error {
	t.Helper()
	heard := listenAll(t, to)
	var errs []error
	for _, family := range families {
		own := from.Addr(family.ipv6)
		errs = append(errs, nodekit.UDP(from, to, to.Addr(family.ipv6), 100))
		eventually(t, func() error {
			if heard.from(own) == 0 {
				return fmt.Errorf("%s: pod %s has heard %v, and not pod %s", family.name, to.Name, heard.sources(), from.Name)
			}
			return nil
		})
		if n := heard.from(node.UplinkAddr(family.ipv6)); n > 0 {
			errs = append(errs, fmt.Errorf("%s: pod %s has heard %d packets under the address of the node of pod %s", family.name, to.Name, n, from.Name))
		}
	}
	return errors.Join(errs...)
}

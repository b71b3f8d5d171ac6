package node_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/test/nodekit"
)

// nodePair is two nodes. A test examines how the near node treats pods of the far node that it does not know, or whose node changes.
type nodePair struct {
	near, far kubeNode
	worldly   *nodekit.Pod // of the near node; it exchanges packets with the entity world only
	ipam      string       // source of the ranges of the nodes
}

func startNativePair(t *testing.T, ipam string) nodePair {
	t.Helper()
	all := startKubeClusterWith(t, ipam, 2, "--routing-mode=native", "--auto-direct-node-routes")
	p := newNodePair(t, all[0], all[1])
	p.ipam = ipam
	return p
}

func startTunnelPair(t *testing.T, ipam string) nodePair {
	t.Helper()
	all := startKubeClusterWith(t, ipam, 2, "--routing-mode=tunnel")
	for _, n := range all {
		awaitTunnel(t, n.Node, 2)
	}
	p := newNodePair(t, all[0], all[1])
	p.ipam = ipam
	return p
}

func newNodePair(t *testing.T, near, far kubeNode) nodePair {
	t.Helper()
	near.server.Put(&ciliumv2.CiliumNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "worldly"}, Spec: json.RawMessage(
		`{"endpointSelector": {"matchLabels": {"app": "worldly"}}, "ingress": [{"fromEntities": ["world"]}], "egress": [{"toEntities": ["world"]}]}`)})
	near.awaitRow(t, "policies", "default/worldly")
	return nodePair{near: near, far: far, worldly: near.startPod(t, "worldly", map[string]string{"app": "worldly"})}
}

// awaitFormer waits until the near node has the ranges with which the far node started as former ranges.
func (p nodePair) awaitFormer(t *testing.T) {
	t.Helper()
	for _, text := range p.far.PodRanges() {
		p.near.awaitRow(t, "nodes", netip.MustParsePrefix(text).Masked().String()+"(former)")
	}
}

// checkReaches tests whether a pod of the far node reaches a pod of the near node, and receives packets from that pod with the address of that pod.
func (p nodePair) checkReaches(t *testing.T, pod, local *nodekit.Pod) {
	t.Helper()
	if err := p.sendUnderOwnAddress(t, local, pod); err != nil {
		t.Error(err)
	}
	for _, family := range families {
		addr := local.Addr(family.ipv6)
		if err := errors.Join(nodekit.Ping(pod, addr, 56), nodekit.TCP(pod, local, addr, 1<<16)); err != nil {
			t.Errorf("%s: pod %s to pod %s: %v", family.name, pod.Name, local.Name, err)
		}
	}
}

// sendUnderOwnAddress sends datagrams to a pod of the far node in both families. It returns an error when the pod receives the address of the near node.
func (p nodePair) sendUnderOwnAddress(t *testing.T, from, to *nodekit.Pod) error {
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
		if n := heard.from(p.near.UplinkAddr(family.ipv6)); n > 0 {
			errs = append(errs, fmt.Errorf("%s: pod %s has heard %d packets under the address of the node of pod %s", family.name, to.Name, n, from.Name))
		}
	}
	return errors.Join(errs...)
}

// checkNotWorld tests whether the near node distinguishes a pod of the far node from the world, in both directions.
func (p nodePair) checkNotWorld(t *testing.T, pod *nodekit.Pod) {
	t.Helper()
	checkDenied(t, [][2]*nodekit.Pod{{pod, p.worldly}, {p.worldly, pod}})
}

// checkDenied tests that pods do not reach other pods, in both families. The pings run concurrently, because each waits for the whole timeout.
func checkDenied(t *testing.T, pairs [][2]*nodekit.Pod) {
	t.Helper()
	var pings sync.WaitGroup
	defer pings.Wait()
	for _, family := range families {
		for _, pair := range pairs {
			pings.Go(func() {
				if nodekit.PingBriefly(pair[0], pair[1].Addr(family.ipv6), 56) == nil {
					t.Errorf("%s: pod %s reaches pod %s", family.name, pair[0].Name, pair[1].Name)
				}
			})
		}
	}
}

package main

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi/kubetest"
	"github.com/waggle-net/waggle/test/nodekit"
)

// kubePair is two nodes with a tunnel between them whose agents use the same API server.
type kubePair struct {
	cluster  *nodekit.Cluster
	one, two *nodekit.Node
	server   *kubetest.Server   // its objects are served by all servers
	servers  []*kubetest.Server // one on the loopback device of each node
}

// newKubePair creates the nodes without starting agents.
func (b *bench) newKubePair() (_ *kubePair, err error) {
	cluster, err := nodekit.NewCluster(nodekit.Options{BinDir: b.bin, AgentArgs: []string{installedStop, "--routing-mode=tunnel"}}, 2)
	if err != nil {
		return nil, err
	}
	k := &kubePair{cluster: cluster, one: cluster.Nodes[0], two: cluster.Nodes[1]}
	defer func() {
		if err != nil {
			err = errors.Join(err, k.Close())
		}
	}()
	for _, n := range cluster.Nodes {
		var own *kubetest.Server
		if err := n.Do(func() (err error) {
			if k.server == nil {
				own, err = kubetest.Open()
				return err
			}
			own, err = k.server.OpenReplica()
			return err
		}); err != nil {
			return nil, err
		}
		own.EnableWatchList()
		k.server, k.servers = own, append(k.servers, own)
		n.AddAgentArgs("--manifests-dir=", "--k8s-api-server="+own.URL(), "--ipam=kubernetes")
		ranges := n.PodRanges()
		own.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name(), UID: types.UID("uid-" + n.Name())}, Spec: corev1.NodeSpec{PodCIDR: ranges[0], PodCIDRs: ranges},
			Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: n.UplinkAddr(false).String()},
				{Type: corev1.NodeInternalIP, Address: n.UplinkAddr(true).String()}}}},
			&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "on-" + n.Name(), Namespace: "default", UID: types.UID("uid-on-" + n.Name())},
				Spec: corev1.PodSpec{NodeName: n.Name(), ServiceAccountName: "default"}})
	}
	k.server.Put(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}})
	return k, nil
}

// Close removes everything.
func (k *kubePair) Close() error {
	err := k.cluster.Close()
	for _, s := range k.servers {
		s.Stop()
	}
	return err
}

// pods attaches a pod to each node and waits until one reaches the other.
func (k *kubePair) pods(ctx context.Context) (p *nodePair, err error) {
	var pods []*nodekit.Pod
	for _, n := range k.cluster.Nodes {
		pod, err := n.AddPod(ctx, "on-"+n.Name())
		if err != nil {
			return nil, err
		}
		pods = append(pods, pod)
	}
	p = &nodePair{cluster: k.cluster, path: map[bool]path{false: {client: pods[0], server: pods[1], addr: pods[1].Addr(false)}}}
	return p, reached(ctx, pods[0], pods[1], false)
}

package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi/kubetest"
	"github.com/waggle-net/waggle/test/nodekit"
)

// underlayFault is a fault of the underlay between two nodes.
type underlayFault struct {
	what  string
	rule  string // of nftables, for tunnel packets on the bridge between the nodes
	named string // in `waggle status`; %s is the name of the other node
}

// underlayFaults measures the time from the join of a node until both nodes name the fault of the underlay between them.
func (b *bench) underlayFaults(ctx context.Context) error {
	for _, fault := range []underlayFault{
		{"UDP port 8472 is blocked", "drop", "UDP port 8472 between this node and node %s is blocked"},
		// The UDP length includes 30 bytes of UDP, VXLAN and Ethernet headers.
		{"large packets are lost", "udp length > 1370 drop", "the path to node %s carries 1340 of 1450 bytes"},
	} {
		var took []time.Duration
		for range b.atMost(3) { // each with two new nodes
			one, err := b.joinWith(ctx, fault)
			if err != nil {
				return fmt.Errorf("%s: %w", fault.what, err)
			}
			took = append(took, one)
		}
		b.promised("a node joins while "+fault.what+", until both nodes name the fault", took, namedBudget)
	}
	return nil
}

// joinWith measures one join. The second node joins when its Node object is written and its agent starts.
func (b *bench) joinWith(ctx context.Context, fault underlayFault) (took time.Duration, err error) {
	cluster, err := nodekit.NewCluster(nodekit.Options{BinDir: b.bin, AgentArgs: []string{installedStop, "--routing-mode=tunnel"}}, 2)
	if err != nil {
		return 0, err
	}
	defer cluster.Close()
	one, two := cluster.Nodes[0], cluster.Nodes[1]
	server, err := useServer(one, kubetest.Open)
	if err != nil {
		return 0, err
	}
	defer server.Stop()
	replica, err := useServer(two, server.OpenReplica)
	if err != nil {
		return 0, err
	}
	defer replica.Stop()
	if err := fault.cause(ctx, one); err != nil {
		return 0, err
	}
	server.Put(memberObject(one), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}})
	if err := errors.Join(one.StartAgent(), waitReady(ctx, one)); err != nil {
		return 0, err
	}
	return timed(func() error {
		server.Put(memberObject(two))
		if err := two.StartAgent(); err != nil {
			return err
		}
		return errors.Join(fault.namedBy(ctx, one, two), fault.namedBy(ctx, two, one))
	})
}

// useServer opens an API server on the loopback device of a node, and makes it the server of the node's agent.
func useServer(node *nodekit.Node, open func() (*kubetest.Server, error)) (server *kubetest.Server, err error) {
	if err := node.Do(func() (err error) { server, err = open(); return err }); err != nil {
		return nil, err
	}
	node.AddAgentArgs("--manifests-dir=", "--k8s-api-server="+server.URL(), "--ipam=kubernetes")
	return server, nil
}

// memberObject returns the Node object of a member of a cluster.
func memberObject(node *nodekit.Node) *corev1.Node {
	ranges := node.PodRanges()
	object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node.Name(), UID: types.UID("uid-" + node.Name())},
		Spec: corev1.NodeSpec{PodCIDR: ranges[0], PodCIDRs: ranges}}
	for _, ipv6 := range []bool{false, true} {
		object.Status.Addresses = append(object.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: node.UplinkAddr(ipv6).String()})
	}
	return object
}

// cause adds the rule to the bridge between the nodes. The rule is removed with the cluster.
func (f underlayFault) cause(ctx context.Context, node *nodekit.Node) error {
	return node.Outside(func() error {
		cmd := exec.CommandContext(ctx, "nft", "-f", "-")
		cmd.Stdin = strings.NewReader("add table bridge faults\nadd chain bridge faults forward { type filter hook forward priority 0 ; }\n" +
			"add rule bridge faults forward udp dport 8472 " + f.rule + "\n")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("nft: %w\n%s", err, out)
		}
		return nil
	})
}

// namedBy waits until a node names the fault of the path to another node.
func (f underlayFault) namedBy(ctx context.Context, node, other *nodekit.Node) error {
	want := fmt.Sprintf(f.named, other.Name())
	return await(ctx, 200*time.Millisecond, func() error {
		status, err := node.Waggle(ctx, "status")
		if err == nil && !strings.Contains(status, want) {
			err = fmt.Errorf("%s does not say that %s:\n%s", node.Name(), want, status)
		}
		return err
	})
}

package main

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi/kubetest"
	"github.com/waggle-net/waggle/test/bench/figures"
	"github.com/waggle-net/waggle/test/nodekit"
)

const (
	farCount         = 100
	farIdentity      = 40000
	changesPerSecond = 100
)

// addressChanges measures the cost of continuous address changes of another node's pods, for an established connection with a host outside and for the agent.
func (b *bench) addressChanges(ctx context.Context) error {
	return b.withServer(ctx, nil, func(node *nodekit.Node, server *kubetest.Server) error {
		far := farPodsOf(server)
		putPod(server, "client")
		pod, err := node.AddPod(ctx, "client")
		if err != nil {
			return err
		}
		defer pod.Close()
		if err := b.atRestWhile(ctx, node, far); err != nil {
			return err
		}
		for _, f := range []struct {
			name    string
			outside netip.Prefix
		}{{"IPv4", nodekit.OutsideIPv4}, {"IPv6", nodekit.OutsideIPv6}} {
			way := path{client: pod, server: node.OutsideHost(), addr: f.outside.Addr()}
			var quiet, changing []time.Duration
			for range 2 * b.rounds {
				one, err := way.mean()
				if err != nil {
					return err
				}
				stop := far.change(ctx)
				other, err := way.mean()
				stop()
				if err != nil {
					return err
				}
				quiet, changing = append(quiet, one), append(changing, other)
			}
			low, high := interval(changing, quiet)
			rate := func(d []time.Duration) string { return fmt.Sprintf("%.0f/s", float64(time.Second)/float64(median(d))) }
			b.sheet.Add(fmt.Sprintf("request-response %s with a host outside, %d addresses change a second, against none (%.3f to %.3f)", f.name,
				changesPerSecond, low, high), rate(changing), rate(quiet), figures.Of(faster(changing, quiet), 1), changesBudget)
		}
		return nil
	})
}

// atRestWhile reports the additional CPU use of the agent while addresses change.
func (b *bench) atRestWhile(ctx context.Context, node *nodekit.Node, far *farPods) error {
	const window, hertz = 10 * time.Second, 100 // USER_HZ, fixed by the kernel's interface
	share := func() (float64, error) {
		before, err := cpuTicks(node.AgentPID())
		if err != nil {
			return 0, err
		}
		time.Sleep(window)
		after, err := cpuTicks(node.AgentPID())
		return float64(after-before) / hertz / window.Seconds() * 100, err
	}
	quiet, err := share()
	if err != nil {
		return err
	}
	stop := far.change(ctx)
	defer stop()
	changing, err := share()
	if err != nil {
		return err
	}
	b.sheet.Add(fmt.Sprintf("CPU of the agent, %d addresses change a second, beyond that at rest", changesPerSecond), fmt.Sprintf("%.2f %%", changing),
		fmt.Sprintf("%.2f %%", quiet), figures.Value{Number: changing - quiet, Unit: "% of a core"}, changesCPUBudget)
	return nil
}

// mean returns the mean duration of many transactions, outliers included.
func (p path) mean() (time.Duration, error) {
	took, err := p.exchanges(10 * requests)
	var sum time.Duration
	for _, one := range took {
		sum += one
	}
	return sum / time.Duration(max(1, len(took))), err
}

// farPods are pods of another node.
type farPods struct {
	server  *kubetest.Server
	changes int // so far
}

// farPodsOf creates the objects of another node and its pods.
func farPodsOf(server *kubetest.Server) *farPods {
	server.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-2", UID: "u2"}, Spec: corev1.NodeSpec{PodCIDRs: []string{"10.51.0.0/16"}},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.200"}}}},
		&ciliumv2.CiliumIdentity{ObjectMeta: metav1.ObjectMeta{Name: strconv.Itoa(farIdentity)}, SecurityLabels: map[string]string{"k8s:app": "far",
			"k8s:io.kubernetes.pod.namespace": "default", "k8s:io.cilium.k8s.policy.cluster": "default"}})
	far := &farPods{server: server}
	for range farCount {
		far.next()
	}
	return far
}

// next gives the next pod, in rotation, a new address.
func (f *farPods) next() {
	number, turn := f.changes%farCount, f.changes/farCount
	name := fmt.Sprintf("far-%d", number)
	f.server.Put(&ciliumv2.CiliumEndpoint{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)},
		Status: ciliumv2.EndpointStatus{ID: int64(number + 1), Identity: &ciliumv2.EndpointIdentity{ID: farIdentity},
			Networking: &ciliumv2.EndpointNetworking{Node: "192.0.2.200",
				Addressing: []ciliumv2.AddressPair{{IPv4: fmt.Sprintf("10.51.%d.%d", turn%250, number+1)}}}}})
	f.changes++
}

// change changes addresses until the caller calls stop.
func (f *farPods) change(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		ticker := time.NewTicker(time.Second / changesPerSecond)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
				f.next()
			}
		}
	}()
	return func() { cancel(); <-ended }
}

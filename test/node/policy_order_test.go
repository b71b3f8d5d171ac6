package node_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sync/errgroup"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/waggle-net/waggle/test/nodekit"
)

// CVE-2024-42488, CVE-2023-27595: whatever the agent learns last when it starts, a pod that is there, and one that comes meanwhile, never
// hears what policy denies. Each resource is held back in turn, with the copy of all objects on disk and without it.
func TestPrivilegedPolicy_StartOrderLeavesNoWindow(t *testing.T) {
	t.Parallel()
	n := startKubeNode(t)
	n.server.Put(&networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "friends"}, Spec: networkingv1.NetworkPolicySpec{
		PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "victim"}}, Ingress: []networkingv1.NetworkPolicyIngressRule{{
			From: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "friend"}}}}}}}})
	n.awaitRow(t, "k8s-networkpolicies", "friends")
	liar := n.startPod(t, "liar", map[string]string{"app": "liar"})
	friend := n.startPod(t, "friend", map[string]string{"app": "friend"})
	victims := &targets{}
	var taps []*tap
	prepare := func(name string) *nodekit.Pod {
		t.Helper()
		pod, err := n.NewPod(name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = pod.Close() })
		taps = append(taps, listenAll(t, pod))
		return pod
	}
	join := func(pod *nodekit.Pod) error {
		if err := attach(t.Context(), pod); err != nil {
			return err
		}
		victims.add(pod.Addr(false), pod.Addr(true))
		return nil
	}
	n.putPod("victim", map[string]string{"app": "victim"})
	n.awaitRow(t, "k8s-pods", "default/victim")
	if err := join(prepare("victim")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var sent atomic.Int64
	var group errgroup.Group
	group.Go(func() error { return flood(ctx, liar, victims, &sent) })

	for _, resource := range []string{"networkpolicies", "namespaces", "pods", "ciliumidentities", "ciliumendpoints", "nodes"} {
		for _, forgetful := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s last, without a copy %t", resource, forgetful), func(t *testing.T) {
				if err := n.KillAgent(t.Context()); err != nil {
					t.Fatal(err)
				}
				if forgetful {
					if err := os.RemoveAll(filepath.Join(n.Dir, "lib")); err != nil {
						t.Fatal(err)
					}
				}
				asked, release := n.hold(resource)
				defer release()
				if err := n.StartAgent(); err != nil {
					t.Fatal(err)
				}
				<-asked
				before := sent.Load()
				name := fmt.Sprintf("v-%s-%t", resource, forgetful)
				n.putPod(name, map[string]string{"app": "victim"})
				pod := prepare(name)
				var adding errgroup.Group
				adding.Go(func() error { return join(pod) }) // it waits, or not
				eventually(t, func() error {
					if sent.Load() < before+200 {
						return fmt.Errorf("only %d packets were sent", sent.Load()-before)
					}
					return nil
				})
				release()
				if err := adding.Wait(); err != nil {
					t.Fatal(err)
				}
				waitReady(t, n.Node)
				for _, addr := range victims.all() {
					eventually(t, func() error { return nodekit.Ping(friend, addr, 56) })
				}
				before = sent.Load()
				eventually(t, func() error {
					if sent.Load() < before+200 {
						return fmt.Errorf("only %d packets were sent", sent.Load()-before)
					}
					return nil
				})
				for i, tp := range taps {
					if got := tp.from(liar.Addr(false), liar.Addr(true)); got > 0 {
						t.Errorf("victim %d has heard %d packets", i, got)
					}
				}
			})
		}
	}
	cancel()
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
	t.Logf("%d packets were sent", sent.Load())
}

// hold keeps the API server from answering any list or watch of a resource until release is called; asked closes when one waits.
func (n kubeNode) hold(resource string) (asked <-chan struct{}, release func()) {
	waiting, released := make(chan struct{}), make(chan struct{})
	first, letGo := sync.OnceFunc(func() { close(waiting) }), sync.OnceFunc(func() { close(released) })
	n.server.Fault(func(r *http.Request) (int, string) {
		if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/"+resource) {
			first()
			select {
			case <-released:
			case <-r.Context().Done():
			}
		}
		return 0, ""
	})
	return waiting, letGo
}

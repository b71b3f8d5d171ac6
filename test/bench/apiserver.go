package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/waggle-net/waggle/pkg/agentclient"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi/kubetest"
	"github.com/waggle-net/waggle/pkg/tables/apiservers"
	"github.com/waggle-net/waggle/test/nodekit"
)

// outage is the duration for which the API server is unreachable. It exceeds the agent's longest pause between two attempts.
const outage = 15 * time.Second

// apiServer measures the documented behaviour during an outage of the API server: ADD without its answers, and the time until the agent knows objects that
// are written after an outage or to another server. The server runs in memory; `make bench-kube` uses a real one.
func (b *bench) apiServer(ctx context.Context) error {
	for _, situation := range []struct {
		name string
		hang func(*http.Request) bool // reports whether a request gets no answer
	}{
		{"that holds back its watch of pods", func(r *http.Request) bool { return r.URL.Path == "/api/v1/pods" }},
		{"that answers nothing", func(*http.Request) bool { return true }},
		{"that is stopped", nil},
	} {
		took, err := b.addsWithout(ctx, situation.hang)
		if err != nil {
			return fmt.Errorf("an API server %s: %w", situation.name, err)
		}
		b.promised("ADD of a pod that the agent does not know, with an API server "+situation.name, took, addNoServerBudget)
	}
	return errors.Join(b.stopWithout(ctx), b.inStep(ctx), b.failOver(ctx))
}

// stopWithout stops an agent whose API server accepts requests and answers none.
func (b *bench) stopWithout(ctx context.Context) error {
	var times stopTimes
	for range b.atMost(3) {
		if err := b.withServer(ctx, nil, func(node *nodekit.Node, server *kubetest.Server) error {
			hangUp(server, func(*http.Request) bool { return true })
			putPod(server, "unknown")
			_, err := node.AddPod(ctx, "unknown") // makes the agent request the pod's object
			return errors.Join(err, times.stop(ctx, node))
		}); err != nil {
			return fmt.Errorf("stop: %w", err)
		}
	}
	b.promised("SIGTERM to the end of the agent, with an API server that answers nothing", times.took, stopBudget)
	return nil
}

// hangUp suppresses the answers to requests and closes the open watches.
func hangUp(server *kubetest.Server, hang func(*http.Request) bool) {
	server.Fault(func(r *http.Request) (int, string) {
		if hang(r) {
			<-r.Context().Done()
		}
		return 0, ""
	})
	server.Compact()
}

// addsWithout attaches pods whose objects the agent has not seen.
func (b *bench) addsWithout(ctx context.Context, hang func(*http.Request) bool) (took []time.Duration, err error) {
	for round := range b.atMost(5) { // each with an agent that has not detected the outage yet
		one, err := b.addWithout(ctx, hang, fmt.Sprintf("unknown-%d", round))
		if err != nil {
			return nil, err
		}
		took = append(took, one)
	}
	return took, nil
}

func (b *bench) addWithout(ctx context.Context, hang func(*http.Request) bool, name string) (took time.Duration, err error) {
	err = b.withServer(ctx, nil, func(node *nodekit.Node, server *kubetest.Server) error {
		if hang == nil {
			server.Stop()
		} else {
			hangUp(server, hang)
		}
		putPod(server, name)
		took, err = timed(func() error { _, err := node.AddPod(ctx, name); return err })
		return err
	})
	return took, err
}

// inStep stops the API server for the duration outage and measures the time until the agent knows an object that is written afterwards.
func (b *bench) inStep(ctx context.Context) error {
	var took []time.Duration
	err := b.withServer(ctx, nil, func(node *nodekit.Node, server *kubetest.Server) error {
		for round := range b.atMost(3) {
			server.Stop()
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(outage):
			}
			if err := node.Do(server.Reopen); err != nil {
				return err
			}
			one, err := b.followed(ctx, node, server, fmt.Sprintf("after-outage-%d", round))
			if err != nil {
				return err
			}
			took = append(took, one)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("an outage: %w", err)
	}
	b.promised(fmt.Sprintf("in step with the API server after an outage of %.0f s", outage.Seconds()), took, inStepBudget)
	return nil
}

// failOver stops the API server that the agent uses while a second one with the same objects keeps running.
func (b *bench) failOver(ctx context.Context) error {
	var took []time.Duration
	for range b.atMost(3) {
		var second *kubetest.Server
		if err := b.withServer(ctx, &second, func(node *nodekit.Node, first *kubetest.Server) error {
			used, other := first, second
			url, err := activeServer(ctx, node)
			if err != nil {
				return err
			}
			if url == second.URL() {
				used, other = second, first
			}
			used.Stop()
			one, err := b.followed(ctx, node, other, "after-fail-over")
			took = append(took, one)
			return err
		}); err != nil {
			return fmt.Errorf("fail-over: %w", err)
		}
	}
	b.promised("fail-over to a second API server", took, failOverBudget)
	return nil
}

// activeServer returns the URL of the API server that the agent uses.
func activeServer(ctx context.Context, node *nodekit.Node) (string, error) {
	agent := agentclient.New(filepath.Join(node.StateDir(), "waggle.sock"))
	rows, err := agentclient.Rows[apiservers.Server](ctx, agent, "api-servers")
	for _, row := range rows {
		if row.Active {
			return row.Server, nil
		}
	}
	return "", errors.Join(err, fmt.Errorf("none of %d API servers is active", len(rows)))
}

// followed writes a namespace and waits until the agent knows it.
func (b *bench) followed(ctx context.Context, node *nodekit.Node, server *kubetest.Server, name string) (time.Duration, error) {
	return timed(func() error {
		server.Put(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
		return await(ctx, 20*time.Millisecond, func() error {
			rows, err := node.Waggle(ctx, "db", "show", "k8s-namespaces")
			if err == nil && !strings.Contains(rows, name) {
				err = fmt.Errorf("the agent does not know the namespace %s", name)
			}
			return err
		})
	})
}

// withServer runs f with a node whose agent uses an API server on the node's loopback device. If second is not nil, the agent also gets a second server.
func (b *bench) withServer(ctx context.Context, second **kubetest.Server, f func(*nodekit.Node, *kubetest.Server) error) error {
	node, err := nodekit.New(nodekit.Options{BinDir: b.bin, AgentArgs: []string{installedStop}})
	if err != nil {
		return err
	}
	defer node.Close()
	var server *kubetest.Server
	urls := ""
	if err := node.Do(func() (err error) {
		if server, err = kubetest.Open(); err != nil {
			return err
		}
		if urls = server.URL(); second != nil {
			*second, err = server.OpenReplica()
			urls += "," + (*second).URL()
		}
		return err
	}); err != nil {
		return err
	}
	defer server.Stop()
	if second != nil {
		defer (*second).Stop()
	}
	server.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: "u1"},
		Spec:   corev1.NodeSpec{PodCIDRs: []string{"10.50.0.0/24", "fd00:50::/64"}},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: nodekit.UplinkIPv4.Addr().String()}}}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}})
	node.AddAgentArgs("--manifests-dir=", "--k8s-api-server="+urls, "--ipam=kubernetes")
	if err := errors.Join(node.StartAgent(), waitReady(ctx, node)); err != nil {
		return err
	}
	return f(node, server)
}

// putPod writes the object of a pod on this node.
func putPod(server *kubetest.Server, name string) {
	server.Put(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID("uid-" + name), Labels: map[string]string{"app": name}},
		Spec: corev1.PodSpec{NodeName: "node-1", ServiceAccountName: "default"}})
}

package node_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/identity"
	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi/kubetest"
	"github.com/waggle-net/waggle/test/nodekit"
)

// kubeNode is a node with a running agent and an API server on its loopback.
type kubeNode struct {
	*nodekit.Node
	server *kubetest.Server
}

// startKubeNode starts the node and its agent with additional flags.
func startKubeNode(t *testing.T, args ...string) kubeNode {
	t.Helper()
	n := kubeNode{Node: newNode(t, nodekit.Options{})}
	if err := n.Do(func() error { n.server = kubetest.New(t); return nil }); err != nil {
		t.Fatal(err)
	}
	n.server.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: "u1"},
		Spec:   corev1.NodeSpec{PodCIDRs: []string{"10.50.0.0/24", "fd00:50::/64"}},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: nodekit.UplinkIPv4.Addr().String()}}}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default", Labels: map[string]string{"team": "bees"}}})
	n.AddAgentArgs(append([]string{"--manifests-dir=", "--k8s-api-server=" + n.server.URL(), "--ipam=kubernetes"}, args...)...)
	if err := n.StartAgent(); err != nil {
		t.Fatal(err)
	}
	waitReady(t, n.Node)
	return n
}

// putPod creates or updates the object of a pod.
func (n kubeNode) putPod(name string, labels map[string]string) {
	n.server.Put(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID("uid-" + name), Labels: labels},
		Spec: corev1.PodSpec{NodeName: n.Name(), ServiceAccountName: "default"}})
}

// startPod creates a pod's object, waits until the agent knows it, and attaches the pod.
func (n kubeNode) startPod(t *testing.T, name string, labels map[string]string) *nodekit.Pod {
	t.Helper()
	n.putPod(name, labels)
	n.awaitRow(t, "k8s-pods", "default/"+name)
	return addPod(t, n.Node, name)
}

func (n kubeNode) awaitRow(t *testing.T, table, text string) {
	t.Helper()
	eventually(t, func() error {
		out, err := n.Waggle(t.Context(), "db", "show", table)
		if err == nil && !strings.Contains(out, text) {
			err = fmt.Errorf("no %s in the table %s:\n%s", text, table, out)
		}
		return err
	})
}

func (n kubeNode) awaitNoRow(t *testing.T, table, text string) {
	t.Helper()
	eventually(t, func() error {
		out, err := n.Waggle(t.Context(), "db", "show", table)
		if err == nil && strings.Contains(out, text) {
			err = fmt.Errorf("%s is in the table %s:\n%s", text, table, out)
		}
		return err
	})
}

// endpointIdentity is a row of endpoint-identities.
type endpointIdentity struct {
	EndpointID uint16            `json:"endpointID"`
	Attachment string            `json:"attachment"`
	Identity   uint32            `json:"identity"`
	Source     string            `json:"source"`
	Labels     map[string]string `json:"labels"`
}

// identityOf returns the row of a pod.
func (n kubeNode) identityOf(t *testing.T, p *nodekit.Pod) endpointIdentity {
	t.Helper()
	rows, err := identitiesOf(t, n.Node)
	if err != nil {
		t.Fatal(err)
	}
	row, found := rows[attachmentOf(p)]
	if !found {
		t.Fatalf("pod %s has no identity: %+v", p.Name, rows)
	}
	return row
}

// identitiesOf returns the table endpoint-identities, by attachment.
func identitiesOf(t *testing.T, node *nodekit.Node) (map[string]endpointIdentity, error) {
	out, err := node.Waggle(t.Context(), "db", "show", "endpoint-identities", "-o", "json")
	if err != nil {
		return nil, err
	}
	var rows []endpointIdentity
	err = json.Unmarshal([]byte(out), &rows)
	all := map[string]endpointIdentity{}
	for _, row := range rows {
		all[row.Attachment] = row
	}
	return all, err
}

// attachmentOf returns the attachment of a pod as tables show it.
func attachmentOf(p *nodekit.Pod) string { return p.ContainerID + ":" + p.IfName }

// published returns the identity that a pod's CiliumEndpoint announces to other nodes; 0 for none.
func (n kubeNode) published(name string) int64 {
	var o ciliumv2.CiliumEndpoint
	if !n.server.Get(kubeapi.CiliumEndpoints, "default", name, &o) || o.Status.Identity == nil {
		return 0
	}
	return o.Status.Identity.ID
}

// noProvisional lets the agent of a test wait for an identity of the cluster for up to one hour, instead of one second before it assigns a provisional one. So
// a busy machine does not cause provisional identities, and every provisional identity is an error. cells/identity/identityallocator tests the second exactly in virtual time.
const noProvisional = "--identity-grace=1h"

// identityOfCluster waits until a pod has an identity of the cluster. The agent must run with [noProvisional].
func (n kubeNode) identityOfCluster(t *testing.T, p *nodekit.Pod) (row endpointIdentity) {
	t.Helper()
	eventually(t, func() error {
		row = n.identityOf(t, p)
		if row.Source == "provisional" {
			t.Fatalf("the agent gave %+v", row)
		}
		if row.Source != "crd" {
			return fmt.Errorf("pod %s has %+v", p.Name, row)
		}
		return nil
	})
	return row
}

// observed holds the identities of a pod's endpoint properties in the kernel during the observation.
type observed struct {
	mu         sync.Mutex
	identities []uint32 // in order, without consecutive repetitions; 0 is a free slot
	lookups    int
}

func ofCluster(id uint32) bool { return id >= identity.ClusterMin && id <= identity.ClusterMax }

func (o *observed) last() uint32 {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.identities) == 0 {
		return 0
	}
	return o.identities[len(o.identities)-1]
}

// observe reads a pod's endpoint properties repeatedly and sends a packet from the pod to another one each millisecond, until stop is called. stop fails the
// test if a packet was lost.
func (n kubeNode) observe(t *testing.T, id uint16, from *nodekit.Pod, to netip.Addr) (o *observed, stop func()) {
	t.Helper()
	var facts *ebpf.Map
	if err := n.Do(func() (err error) {
		pin := bpf.PinName(bpf.MapEndpointFacts, bpf.LayoutVersion(bpf.MapEndpointFacts))
		facts, err = ebpf.LoadPinnedMap(filepath.Join(n.BPFRoot(), "waggle", "maps", pin), nil)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = facts.Close() })
	ctx, cancel := context.WithCancel(t.Context())
	o = &observed{}
	var group errgroup.Group
	group.Go(func() error {
		for ctx.Err() == nil {
			var slot bpf.EndpointFacts
			if err := facts.Lookup(uint32(id), &slot); err != nil {
				return err
			}
			if slot.Ifindex == 0 {
				slot.Identity = 0
			}
			o.mu.Lock()
			if o.lookups++; len(o.identities) == 0 || o.identities[len(o.identities)-1] != slot.Identity {
				o.identities = append(o.identities, slot.Identity)
			}
			o.mu.Unlock()
			if o.lookups%100 == 0 {
				time.Sleep(time.Millisecond) // the agent, the API server and other tests need a CPU as well
			}
		}
		return nil
	})
	sent := 0
	group.Go(func() error {
		for ; ctx.Err() == nil; sent++ {
			if err := nodekit.Ping(from, to, 56); err != nil {
				return fmt.Errorf("after %d answers: %w", sent, err)
			}
			time.Sleep(time.Millisecond)
		}
		return nil
	})
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := group.Wait(); err != nil {
				t.Error(err)
			}
			t.Logf("%d looks at the facts found %v; %d packets were answered", o.lookups, o.identities, sent)
		})
	}
	t.Cleanup(stop)
	return o, stop
}

// While the API server is unavailable, a new pod works at once with a provisional identity of this node; the identity of the cluster replaces it in the kernel
// with one store.
func TestPrivilegedIdentity_ProvisionalReplacedWithoutGap(t *testing.T) {
	t.Parallel()
	n := startKubeNode(t)
	peer := n.startPod(t, "peer", map[string]string{"app": "peer"})
	n.putPod("late", map[string]string{"app": "late", "pod-template-hash": "x"})
	n.awaitRow(t, "k8s-pods", "default/late")

	n.server.Stop()
	pod := addPod(t, n.Node, "late")
	provisional := n.identityOf(t, pod)
	if provisional.Source != "provisional" || !identity.IsProvisional(provisional.Identity) {
		t.Fatalf("without an API server the pod has %+v", provisional)
	}
	o, stop := n.observe(t, provisional.EndpointID, pod, peer.Addr(false))
	eventually(t, func() error {
		if o.last() != provisional.Identity {
			return fmt.Errorf("the kernel has %d, want %d", o.last(), provisional.Identity)
		}
		return nil
	})

	if err := n.Do(func() error { n.server.Start(t); return nil }); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		if got := o.last(); !ofCluster(got) {
			return fmt.Errorf("the kernel still has %d", got)
		}
		return nil
	})
	eventually(t, func() error {
		if got := n.published("late"); got != int64(o.last()) {
			return fmt.Errorf("published is %d, the kernel has %d", got, o.last())
		}
		return nil
	})
	stop()
	real := n.identityOf(t, pod)
	if real.Source != "crd" || fmt.Sprint(real.Labels) != fmt.Sprint(provisional.Labels) {
		t.Errorf("provisional %+v became %+v", provisional, real)
	}
	want := map[string]string{"k8s:app": "late", "k8s:io.kubernetes.pod.namespace": "default", "k8s:io.cilium.k8s.policy.cluster": "default",
		"k8s:io.cilium.k8s.policy.serviceaccount": "default", "k8s:io.cilium.k8s.namespace.labels.team": "bees"}
	if fmt.Sprint(real.Labels) != fmt.Sprint(want) {
		t.Errorf("the labels are %v, want %v", real.Labels, want)
	}
	if !slices.Equal(o.identities, []uint32{provisional.Identity, real.Identity}) {
		t.Errorf("the kernel had %v, want %d and then %d and nothing between", o.identities, provisional.Identity, real.Identity)
	}
}

// Labels of a pod and of its namespace change its identity, in the kernel and for other nodes; labels that distinguish the pods of one set do not.
func TestPrivilegedIdentity_FollowsLabels(t *testing.T) {
	t.Parallel()
	n := startKubeNode(t, noProvisional)
	one := n.startPod(t, "web-0", map[string]string{"app": "web", "pod-template-hash": "a", "statefulset.kubernetes.io/pod-name": "web-0"})
	two := n.startPod(t, "web-1", map[string]string{"app": "web", "pod-template-hash": "b", "statefulset.kubernetes.io/pod-name": "web-1"})
	first := n.identityOfCluster(t, one)
	if other := n.identityOfCluster(t, two); other.Identity != first.Identity {
		t.Errorf("pods of one set have %+v and %+v", first, other)
	}
	o, stop := n.observe(t, first.EndpointID, one, two.Addr(true))
	history := []uint32{first.Identity}
	change := func(what string, apply func()) {
		t.Helper()
		before := o.last()
		apply()
		eventually(t, func() error {
			now := o.last()
			if now == before || int64(now) != n.published("web-0") {
				return fmt.Errorf("%s: the kernel has %d, was %d; published is %d", what, now, before, n.published("web-0"))
			}
			return nil
		})
		history = append(history, o.last())
	}
	eventually(t, func() error {
		if o.last() != first.Identity {
			return errors.New("the identity has not been observed yet")
		}
		return nil
	})
	change("a label of the pod", func() { n.putPod("web-0", map[string]string{"app": "web", "tier": "front", "pod-template-hash": "a"}) })
	change("a label of the namespace", func() {
		n.server.Put(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default", Labels: map[string]string{"team": "wasps"}}})
	})
	stop()
	if !slices.Equal(o.identities, history) {
		t.Errorf("the kernel had %v, want %v and nothing between", o.identities, history)
	}

	if err := one.Detach(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.server.Await(t, "the CiliumEndpoint is deleted", func() bool { return !n.server.Get(kubeapi.CiliumEndpoints, "default", "web-0", nil) })
}

// When the plugin is faster than the watch, the agent requests the pod from the API server, once.
func TestPrivilegedIdentity_PluginFasterThanTheWatch(t *testing.T) {
	t.Parallel()
	n := startKubeNode(t, noProvisional)
	n.startPod(t, "known", nil)
	// From now on the server holds back every watch of pods.
	var held atomic.Int64
	release := make(chan struct{})
	letGo := sync.OnceFunc(func() { close(release) })
	t.Cleanup(letGo)
	n.server.Fault(func(r *http.Request) (int, string) {
		if r.URL.Path == "/api/v1/pods" {
			held.Add(1)
			select {
			case <-release:
			case <-r.Context().Done():
			}
		}
		return 0, ""
	})
	n.server.Compact() // ends the open watch; cut connections would make the server appear unavailable
	n.server.Await(t, "the watch of pods is held up", func() bool { return held.Load() > 0 })

	var pod *nodekit.Pod
	tried := 0
	eventually(t, func() error { // the agent waits for the reply for a second and a half
		tried++
		name := fmt.Sprintf("fast-%d", tried)
		n.putPod(name, map[string]string{"app": "fast"})
		pod = addPod(t, n.Node, name)
		asked := 0
		for _, r := range n.server.Requests() {
			if r.Verb == "get" && r.Resource == kubeapi.Pods.String() && r.Name == name {
				asked++
			}
		}
		begins := n.identityOf(t, pod)
		has := begins.Labels["k8s:app"] == "fast"
		if asked > 1 || has && asked == 0 {
			t.Errorf("the API server was asked for the pod %d times", asked)
		}
		if !has {
			return fmt.Errorf("the pod begins with %+v, without its labels", begins)
		}
		return nil
	})
	before := n.identityOfCluster(t, pod)
	letGo()
	n.awaitRow(t, "k8s-pods", "default/"+pod.Name)
	if after := n.identityOf(t, pod); after.Identity != before.Identity {
		t.Errorf("with its row the pod has %+v, before %+v", after, before)
	}
}

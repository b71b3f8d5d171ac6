package node_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/testseed"
	"github.com/waggle-net/waggle/test/nodekit"
)

// guarded lists the kinds of pods that must not receive packets of a denied pod: one kind allows friends only, and two allow all pods except the denied ones.
var guarded = []string{"victim", "shielded", "warded"}

// guard creates the policies of the guarded pods.
func (n kubeNode) guard() {
	n.server.Put(&networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "friends"}, Spec: networkingv1.NetworkPolicySpec{
		PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "victim"}}, Ingress: []networkingv1.NetworkPolicyIngressRule{{
			From: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "friend"}}}}}}}})
	deny := func(app string) json.RawMessage {
		return json.RawMessage(`{"endpointSelector": {"matchLabels": {"app": "` + app + `"}}, "enableDefaultDeny": {"ingress": false}, ` +
			`"ingressDeny": [{"fromEndpoints": [{"matchLabels": {"app": "liar"}}]}]}`)
	}
	n.server.Put(&ciliumv2.CiliumNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "no-liars"}, Spec: deny("shielded")})
	n.server.Put(&ciliumv2.CiliumClusterwideNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "no-liars-anywhere"}, Spec: deny("warded")})
}

// putRemoteDeniedPod creates the objects of a denied pod on another node, which is the host outside, and lets that host send under the pod's addresses.
func (n kubeNode) putRemoteDeniedPod(t *testing.T) (addrs []netip.Addr) {
	t.Helper()
	const number = 40000
	n.server.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-2", UID: "u2"}, Spec: corev1.NodeSpec{PodCIDRs: []string{"10.51.0.0/24", "fd00:51::/64"}},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: nodekit.OutsideIPv4.Addr().String()},
			{Type: corev1.NodeInternalIP, Address: nodekit.OutsideIPv6.Addr().String()}}}},
		&ciliumv2.CiliumIdentity{ObjectMeta: metav1.ObjectMeta{Name: strconv.Itoa(number)}, SecurityLabels: map[string]string{"k8s:app": "liar",
			"k8s:io.kubernetes.pod.namespace": "default", "k8s:io.cilium.k8s.policy.cluster": "default"}},
		&ciliumv2.CiliumEndpoint{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "far-liar", UID: "far"}, Status: ciliumv2.EndpointStatus{ID: 9,
			Identity: &ciliumv2.EndpointIdentity{ID: number}, Networking: &ciliumv2.EndpointNetworking{Node: nodekit.OutsideIPv4.Addr().String(),
				Addressing: []ciliumv2.AddressPair{{IPv4: "10.51.0.9", IPv6: "fd00:51::9"}}}}})
	if err := n.RouteFromOutside("10.50.0.0/24", "fd00:50::/64"); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"10.51.0.9", "fd00:51::9"} {
		addrs = append(addrs, netip.MustParseAddr(text))
	}
	if err := n.Outside(func() error { return speakAs(addrs) }); err != nil {
		t.Fatal(err)
	}
	for _, addr := range addrs {
		n.awaitRow(t, "ipcache", addr.String()+"/")
	}
	return addrs
}

// speakAs changes all routes to the node's pods to use foreign source addresses.
func speakAs(addrs []netip.Addr) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	for i, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		addr := &netlink.Addr{IPNet: &net.IPNet{IP: addrs[i].AsSlice(), Mask: net.CIDRMask(addrs[i].BitLen(), addrs[i].BitLen())}}
		if family == netlink.FAMILY_V6 {
			addr.Flags = unix.IFA_F_NODAD // usable as a route's source at once
		}
		if err := netlink.AddrReplace(lo, addr); err != nil {
			return fmt.Errorf("add %s: %w", addrs[i], err)
		}
		routes, err := netlink.RouteList(nil, family)
		if err != nil {
			return err
		}
		for _, route := range routes {
			if route.Dst == nil || !route.Dst.Contains(net.ParseIP("10.50.0.1")) && !route.Dst.Contains(net.ParseIP("fd00:50::1")) {
				continue
			}
			if route.Src = addrs[i].AsSlice(); route.Gw != nil {
				if err := netlink.RouteReplace(&route); err != nil {
					return fmt.Errorf("route %s from %s: %w", route.Dst, addrs[i], err)
				}
			}
		}
	}
	return nil
}

// CVE-2024-42488, CVE-2023-27595: a starting agent may learn the resources in any order. Existing pods and pods that are added meanwhile never receive packets
// that policy denies, by default deny or by a deny rule, from pods of this node or another one. Each resource is held back in turn, with or without the copy of
// all objects on disk as the seed decides; a soak tests both.
func TestPrivilegedPolicy_StartOrderLeavesNoWindow(t *testing.T) {
	t.Parallel()
	n := startKubeNode(t, "--routing-mode=native") // the remote pod sends without a tunnel
	deniedPod := n.startPod(t, "liar", map[string]string{"app": "liar"})
	friend := n.startPod(t, "friend", map[string]string{"app": "friend"})
	deniedAddrs := append([]netip.Addr{deniedPod.Addr(false), deniedPod.Addr(true)}, n.putRemoteDeniedPod(t)...)
	victims := &targets{}
	taps := map[string]*tap{}
	prepare := func(name, app string) *nodekit.Pod {
		t.Helper()
		n.putPod(name, map[string]string{"app": app})
		pod, err := n.NewPod(name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = pod.Close() })
		taps[name] = listenAll(t, pod)
		return pod
	}
	join := func(pod *nodekit.Pod) error {
		if err := attach(t.Context(), pod); err != nil {
			return err
		}
		victims.add(pod.Addr(false), pod.Addr(true))
		return nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	var sent, sentFromAfar atomic.Int64
	var group errgroup.Group
	group.Go(func() error { return flood(ctx, deniedPod, victims, &sent) })
	group.Go(func() error { return flood(ctx, n.OutsideHost(), victims, &sentFromAfar) })
	some := func() {
		t.Helper()
		before, beforeFromAfar := sent.Load(), sentFromAfar.Load()
		eventually(t, func() error {
			if sent.Load() < before+200 || sentFromAfar.Load() < beforeFromAfar+200 {
				return fmt.Errorf("only %d and %d packets were sent", sent.Load()-before, sentFromAfar.Load()-beforeFromAfar)
			}
			return nil
		})
	}

	// Without policies, packets of all denied pods arrive, so their absence later is due to the policies.
	present := map[string]*nodekit.Pod{}
	for _, app := range guarded {
		present[app] = prepare(app, app)
		n.awaitRow(t, "k8s-pods", "default/"+app)
		if err := join(present[app]); err != nil {
			t.Fatal(err)
		}
		for _, addr := range deniedAddrs {
			eventually(t, func() error {
				if taps[app].from(addr) == 0 {
					return fmt.Errorf("%s does not hear %s although there is no policy", app, addr)
				}
				return nil
			})
		}
	}
	n.guard()
	for _, app := range guarded {
		eventually(t, func() error {
			before := taps[app].from(deniedAddrs...)
			some()
			if got := taps[app].from(deniedAddrs...) - before; got > 0 {
				return fmt.Errorf("%s still hears %d packets", app, got)
			}
			return nil
		})
		taps[app] = listenAll(t, present[app])
	}

	reported := map[string]int{} // reported packets, by receiver
	withoutFirst := testseed.New(t).IntN(2) == 0
	for i, resource := range []string{"networkpolicies", "ciliumnetworkpolicies", "ciliumclusterwidenetworkpolicies", "namespaces", "pods",
		"ciliumidentities", "ciliumendpoints", "nodes", "ciliumnodes"} {
		for _, forgetful := range []bool{false, true} {
			if !soaks() && forgetful != ((i%2 == 0) == withoutFirst) {
				continue
			}
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
				var adding errgroup.Group
				staying := len(victims.all())
				var visitors []*nodekit.Pod
				for _, app := range guarded {
					pod := prepare(fmt.Sprintf("%s-%s-%t", app, resource, forgetful), app)
					adding.Go(func() error { return join(pod) }) // waits or not
					visitors = append(visitors, pod)
				}
				some()
				release()
				if err := adding.Wait(); err != nil {
					t.Fatal(err)
				}
				waitReady(t, n.Node)
				for _, addr := range victims.all() {
					eventually(t, func() error { return nodekit.PingBriefly(friend, addr, 56) })
				}
				some()
				for name, tp := range taps {
					if near, far := tp.from(deniedAddrs[:2]...), tp.from(deniedAddrs[2:]...); near+far > reported[name] {
						reported[name] = near + far
						t.Errorf("%s has heard %d packets of the liar here, and %d of the one elsewhere", name, near, far)
					}
				}
				victims.keep(staying)
				for _, pod := range visitors {
					if err := pod.Detach(t.Context()); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	cancel()
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
	t.Logf("%d packets were sent, and %d from another node", sent.Load(), sentFromAfar.Load())
}

// keep removes all targets except the first n.
func (a *targets) keep(n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.list = a.list[:n]
}

// hold delays every list and watch of a resource by the API server until release is called; asked is closed when the first one waits.
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

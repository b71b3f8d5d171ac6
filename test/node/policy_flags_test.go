package node_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/waggle-net/waggle/test/nodekit"
)

// again kills the agent and starts it with additional flags.
func (w *world) again(t *testing.T, args ...string) {
	t.Helper()
	if err := w.KillAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.AddAgentArgs(args...)
	if err := w.StartAgent(); err != nil {
		t.Fatal(err)
	}
	waitReady(t, w.Node)
}

// Policies of a disabled kind do not isolate, deny nothing and allow nothing; the node reports that, and policies of the other kind stay enforced. After the
// kind is enabled again, its policies are enforced as soon as the agent is ready: for existing pods, also on established connections, and for a new pod from
// its first packet.
func TestPrivilegedPolicy_KindsSwitchedOff(t *testing.T) {
	t.Parallel()
	fromB := inbound("x/a", from("x/b"))
	const some = "{matchExpressions: [{key: app, operator: In, values: [a, late]}]}"
	kubernetes := networkPolicy("x", "podSelector: "+some+", ingress: [{from: [{podSelector: {matchLabels: {app: b}}}]}]")
	cilium := ciliumPolicy("w", "endpointSelector: "+some+", ingress: [{fromEndpoints: [{matchLabels: {app: b}}]}]") +
		"\n" + clusterwidePolicy("endpointSelector: {matchLabels: {app: liar}}, enableDefaultDeny: {ingress: false}, ingressDeny: [{fromEntities: [world]}]")
	ciliums := both(inbound("w/a", from("w/b")), inbound("z/liar", func(f flow) bool { return f.from != theOutside }))
	for _, kind := range []struct {
		name, flag, status string
		left               func(flow) bool // allowed connections while the kind is disabled
		closed, late       string          // pods that only this kind isolates; late is added later
	}{
		{"Kubernetes", "--enable-k8s-networkpolicy", "NetworkPolicies are ignored on this node", ciliums, "x/a", "x/late"},
		{"Cilium", "--enable-cilium-network-policy", "CiliumNetworkPolicies and CiliumClusterwideNetworkPolicies are ignored on this node", fromB, "w/a", "w/late"},
	} {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.apply(t, kubernetes+"\n"+cilium)
			w.compare(t, usual, both(fromB, ciliums))

			w.again(t, kind.flag+"=false")
			awaitStatus(t, w.Node, kind.status, kind.flag+"=false")
			w.compare(t, usual, kind.left)
			w.compare(t, usual, kind.left) // stays so
			if text, err := w.Waggle(t.Context(), "policy", "list"); err != nil || !strings.Contains(text, kind.status) {
				t.Errorf("what is left out is not said (%v):\n%s", err, text)
			}
			var begun []net.Conn
			for _, addr := range w.party(kind.closed).addrs {
				server, done := echoServer(t, "tcp", w.party(kind.closed), addr)
				defer done()
				begun = append(begun, connect(t, w.party("z/a"), "tcp", server))
			}

			w.again(t, kind.flag+"=true")
			knocks := w.knock(t, "z/a", kind.closed)
			for _, conn := range begun {
				if echoes(conn, noReplyTimeout) == nil {
					t.Errorf("%s: what was begun while the policies were off goes on", conn.RemoteAddr())
				}
			}
			w.joinUnheard(t, kind.late, "labels: {app: late}}, spec: {containers: [{name: c}]}", "z/a")
			awaitStatusWithout(t, w.Node, "ignored on this node")
			knocks.unheard(t)
			w.compare(t, usual, both(fromB, ciliums))
		})
	}
}

// joinUnheard adds a pod that must never receive a packet of deniedPeer, which sends to all addresses that the pod may get while it is added.
func (w *world) joinUnheard(t *testing.T, name, manifest, deniedPeer string) {
	t.Helper()
	w.write(t, "late.yaml", podManifests(map[string]string{name: manifest}))
	pod := newPod(t, w.Node, name)
	heard := listenAll(t, pod)
	addrs := &targets{}
	for a := netip.MustParseAddr("10.244.1.1"); a.Less(netip.MustParseAddr("10.244.1.255")); a = a.Next() {
		addrs.add(a) // IPv6 has too many
	}
	ctx, cancel := context.WithCancel(t.Context())
	var calls atomic.Int64
	var calling errgroup.Group
	calling.Go(func() error { return flood(ctx, w.party(deniedPeer), addrs, &calls) })
	if err := attach(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	addrs.add(pod.Addr(true))
	before := calls.Load()
	eventually(t, func() error {
		if got := calls.Load() - before; got < 4*256 {
			return fmt.Errorf("only %d connections were begun", got)
		}
		return nil
	})
	cancel()
	if err := calling.Wait(); err != nil {
		t.Error(err)
	}
	if n := heard.from(w.party(deniedPeer).addrs[:]...); n > 0 {
		t.Errorf("%d packets of %s reached %s", n, deniedPeer, name)
	}
}

// CIDRs of Cilium's policies match nodes, this one and others, only with --policy-cidr-match-mode=nodes, in allow and deny rules; they never match pods. The
// host outside is another node in this test.
func TestPrivilegedPolicy_CIDRsOfNodes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.write(t, "node-2.yaml", fmt.Sprintf("{apiVersion: v1, kind: Node, metadata: {name: node-2}, status: {addresses: [{type: InternalIP, address: %s}, "+
		"{type: InternalIP, address: '%s'}]}}\n", nodekit.OutsideIPv4.Addr(), nodekit.OutsideIPv6.Addr()))
	const all4and6 = "[0.0.0.0/0, '::/0']"
	cases := func(outside, host func(flow) bool) []policyCase {
		nodes := func(f flow) bool { return outside(f) || host(f) }
		return []policyCase{
			{"from another node", []string{ciliumPolicy("x", subjectA+"ingress: [{fromCIDR: [@outside/4, @outside/6]}]")}, nil, inbound("x/a", outside)},
			{"from everywhere", []string{ciliumPolicy("x", subjectA+"ingress: [{fromCIDR: "+all4and6+"}]")}, nil, inbound("x/a", outside)},
			{"from everywhere less another node", []string{ciliumPolicy("x", subjectA+"ingress: [{fromCIDRSet: [{cidr: 0.0.0.0/0, except: [@outside/4]}, {cidr: '::/0'}]}]")}, nil,
				inbound("x/a", func(f flow) bool { return f.ipv6 && outside(f) })},
			{"to another node", []string{ciliumPolicy("x", subjectA+"egress: [{toCIDR: [@outside/4, @outside/6]}]")}, nil, outbound("x/a", outside)},
			{"to this node", []string{ciliumPolicy("x", subjectA+"egress: [{toCIDR: [@node/4, @node/6]}]")}, nil, outbound("x/a", host)},
			{"to everywhere", []string{ciliumPolicy("x", subjectA+"egress: [{toCIDR: "+all4and6+"}]")}, nil, outbound("x/a", nodes)},
			{"a deny of another node", []string{ciliumPolicy("x", subjectA+"ingress: [{fromEntities: [all]}], ingressDeny: [{fromCIDR: [@outside/4, @outside/6]}]")}, nil,
				inbound("x/a", func(f flow) bool { return !outside(f) })},
			{"a deny of everything", []string{ciliumPolicy("x", subjectA+"egress: [{toEntities: [all]}], egressDeny: [{toCIDR: "+all4and6+"}]")}, nil,
				outbound("x/a", func(f flow) bool { return !nodes(f) })},
		}
	}
	with := func(name string) func(flow) bool {
		return func(f flow) bool { return slices.Contains([]string{f.from, f.to}, name) }
	}
	t.Run("as it is", func(t *testing.T) {
		w.awaitNode(t)
		w.run(t, cases(none, none))
	})
	w.again(t, "--policy-cidr-match-mode=nodes")
	t.Run("with nodes", func(t *testing.T) { w.run(t, cases(with(theOutside), with(theNode))) })
}

// awaitNode waits until the agent knows the host outside as another node.
func (w *world) awaitNode(t *testing.T) {
	t.Helper()
	eventually(t, func() error {
		text, err := w.Waggle(t.Context(), "db", "show", "ipcache")
		for _, addr := range []netip.Prefix{nodekit.OutsideIPv4, nodekit.OutsideIPv6} {
			if !strings.Contains(text, addr.Addr().String()+"/") {
				return errors.Join(err, fmt.Errorf("%s is not known as a node's:\n%s", addr.Addr(), text))
			}
		}
		return err
	})
}

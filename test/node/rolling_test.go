package node_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/waggle-net/waggle/pkg/agentclient"
	"github.com/waggle-net/waggle/pkg/tables/nodeslots"
	"github.com/waggle-net/waggle/test/nodekit"
	"github.com/waggle-net/waggle/test/nodekit/load"
)

// reach is the path of a node's programs to another node.
type reach struct{ Direct, Routed bool }

// reaches waits until the slots of other nodes have the wanted paths, by node.
func reaches(t *testing.T, n kubeNode, want map[string]reach) {
	t.Helper()
	eventually(t, func() error {
		var rows []*nodeslots.Slot
		text, err := n.Waggle(t.Context(), "db", "show", "node-slots", "-o", "json")
		if err == nil {
			err = json.Unmarshal([]byte(text), &rows)
		}
		got := map[string]reach{}
		for _, s := range rows {
			if s.Node != n.Name() {
				got[s.Node] = reach{s.Direct, s.Routed}
			}
		}
		if err == nil && !maps.Equal(got, want) {
			err = fmt.Errorf("%s reaches %+v, want %+v", n.Name(), got, want)
		}
		return err
	})
}

// becomes replaces the agent of a node by one with other flags, as an update of a DaemonSet does.
func (n kubeNode) becomes(t *testing.T, args ...string) {
	t.Helper()
	n.AddAgentArgs(args...)
	if err := n.UpgradeAgent(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
}

// denials are repeated pings that policies deny.
type denials struct {
	stop  context.CancelFunc
	all   sync.WaitGroup
	tried atomic.Int64
	taps  map[*nodekit.Pod]*tap
	of    []*nodekit.Pod
}

// deny pings from the first to the second pod of each pair.
func deny(t *testing.T, pairs ...[2]*nodekit.Pod) *denials {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	d := &denials{stop: cancel, taps: map[*nodekit.Pod]*tap{}}
	for _, pair := range pairs {
		from, to := pair[0], pair[1]
		d.taps[to], d.of = listenAll(t, to), append(d.of, from)
		for _, f := range families {
			d.all.Go(func() {
				for ctx.Err() == nil {
					if nodekit.PingBriefly(from, to.Addr(f.ipv6), 56) == nil {
						t.Errorf("%s reaches %s", from.Name, to.Name)
					}
					d.tried.Add(1)
				}
			})
		}
	}
	t.Cleanup(func() { cancel(); d.all.Wait() })
	return d
}

// end requires that pings were sent and none has arrived.
func (d *denials) end(t *testing.T) {
	t.Helper()
	d.stop()
	d.all.Wait()
	if d.tried.Load() < int64(2*len(d.of)*len(families)) {
		t.Errorf("%d pings that are denied prove nothing", d.tried.Load())
	}
	for to, seen := range d.taps {
		for _, from := range d.of {
			if n := seen.from(from.Addr(false), from.Addr(true)); n > 0 {
				t.Errorf("%d packets of %s have arrived at %s", n, from.Name, to.Name)
			}
		}
	}
}

// rolling holds two nodes with allowed traffic and with denied traffic.
type rolling struct {
	one, two kubeNode
	clients  [2]*nodekit.Pod
	load     *load.Load
	denials  *denials
}

func startRolling(t *testing.T, one, two kubeNode) *rolling {
	t.Helper()
	one.server.Put(&networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "server", UID: "u"},
		Spec: networkingv1.NetworkPolicySpec{PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "server"}},
			Ingress: []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{
				PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "client"}}}}}}}})
	r := &rolling{one: one, two: two}
	var servers, others [2]*nodekit.Pod
	all := []kubeNode{one, two}
	for i, n := range all {
		n.awaitRow(t, "policies", "default/server")
		for pods, app := range map[*[2]*nodekit.Pod]string{&r.clients: "client", &servers: "server", &others: "other"} {
			pods[i] = n.startPod(t, app+"-"+n.Name(), map[string]string{"app": app})
		}
	}
	var paths []load.Path
	for i, n := range all {
		far := 1 - i
		for _, f := range families {
			for _, pod := range []*nodekit.Pod{r.clients[i], servers[i], others[i]} {
				awaitIdentity(t, all[far], pod.Addr(f.ipv6), n.identityOf(t, pod).Identity)
			}
			to := servers[far]
			paths = append(paths, load.Path{Name: r.clients[i].Name + " to " + to.Name + " " + f.name, From: r.clients[i], To: to, Addr: to.Addr(f.ipv6)})
		}
	}
	r.load = load.StartFor(t, load.Rates{Connections: 2 * len(paths), Messages: 100, Datagrams: 600, Connects: 24}, paths, nil)
	r.denials = deny(t, [2]*nodekit.Pod{others[0], servers[1]}, [2]*nodekit.Pod{others[1], servers[0]})
	return r
}

// both waits until both nodes reach each other by the wanted path.
func (r *rolling) both(t *testing.T, want reach) {
	t.Helper()
	reaches(t, r.one, map[string]reach{r.two.Name(): want})
	reaches(t, r.two, map[string]reach{r.one.Name(): want})
}

// observe reads the paths of both nodes until seen is called, which requires that both nodes have used the wanted one. The path may last only seconds, and the
// update of an agent may take longer.
func (r *rolling) observe(t *testing.T, want reach) (seen func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	missing := map[string]*atomic.Bool{}
	for _, n := range []kubeNode{r.one, r.two} {
		c, own, miss := api(n.Node), n.Name(), new(atomic.Bool)
		miss.Store(true)
		missing[n.Name()] = miss
		running.Go(func() {
			for ; ctx.Err() == nil && miss.Load(); pauseFor(ctx, 100*time.Millisecond) {
				rows, err := agentclient.Rows[*nodeslots.Slot](ctx, c, "node-slots")
				if err != nil { // the agent restarts
					continue
				}
				for _, s := range rows {
					if s.Node != own && (reach{s.Direct, s.Routed}) == want {
						miss.Store(false)
					}
				}
			}
		})
	}
	stop := func() { cancel(); running.Wait() }
	t.Cleanup(stop)
	return func() {
		t.Helper()
		stop()
		for name, miss := range missing {
			if miss.Load() {
				t.Errorf("%s has not reached the other node by %+v", name, want)
			}
		}
	}
}

// onTheWire requires the packets of the clients to go through the tunnel or to bypass it.
func (r *rolling) onTheWire(t *testing.T, tunnel bool) {
	t.Helper()
	for _, f := range families {
		for i, n := range []kubeNode{r.one, r.two} {
			past, through := sent(t, n.Node, r.clients[i], r.clients[i].Addr(f.ipv6), r.clients[1-i].Addr(f.ipv6))
			if (past > 0) == tunnel || (through > 0) != tunnel {
				t.Errorf("%s of %s: %d frames past the tunnel and %d through it, want tunnel %v", f.name, n.Name(), past, through, tunnel)
			}
		}
	}
}

func (r *rolling) log(t *testing.T, what string) {
	t.Helper()
	t.Logf("%v %s", r.load.At(), what)
}

// Paths of a node to another one.
var (
	direct    = reach{Direct: true}               // the other node has no tunnel, or is hybrid
	routed    = reach{Direct: true, Routed: true} // beside its tunnel
	lingers   = reach{Routed: true}               // through the tunnel; the other node accepts both
	tunnelled = reach{}
)

// The flags of both modes. Packets without a tunnel are as long as with one: otherwise senders would have to learn the size, and retransmit some packets.
var (
	toNative = []string{"--routing-mode=native", "--auto-direct-node-routes", "--mtu=1450"}
	toTunnel = []string{"--routing-mode=tunnel", "--auto-direct-node-routes=false", "--mtu=0"}
)

// Two nodes get a tunnel one after the other, and lose it again through hybrid mode. They reach each other by routes until both have the tunnel. No packet is
// lost, and no denied packet passes.
func TestPrivilegedRolling_NativeToTunnelAndBack(t *testing.T) {
	t.Parallel()
	all := startKubeCluster(t, 2, toNative...)
	r := startRolling(t, all[0], all[1])
	r.both(t, direct)
	shows(t, r.one.Node, "node get node-2", "Receives", "direct")

	r.log(t, "node-1 gets a tunnel")
	r.one.becomes(t, toTunnel...)
	reaches(t, r.one, map[string]reach{"node-2": routed})
	shows(t, r.two.Node, "node get node-1", "vxlan:8472:ipv4+ipv6")
	shows(t, r.one.Node, "node list", "MODE", "direct")
	reaches(t, r.two, map[string]reach{"node-1": direct})

	r.log(t, "node-2 gets a tunnel")
	lingered := r.observe(t, lingers)
	r.two.becomes(t, toTunnel...)
	r.both(t, tunnelled)
	lingered()

	for _, n := range all {
		r.log(t, n.Name()+" becomes hybrid")
		n.becomes(t, "--routing-mode=hybrid")
	}
	r.both(t, direct)

	r.log(t, "node-1 loses its tunnel")
	r.one.becomes(t, toNative...)
	reaches(t, r.one, map[string]reach{"node-2": direct})
	reaches(t, r.two, map[string]reach{"node-1": routed})
	r.log(t, "node-2 loses its tunnel")
	r.two.becomes(t, toNative...)
	r.both(t, direct)
	lostNothing(t, r.load)
	r.denials.end(t)
	r.onTheWire(t, false)
}

// Agents of a release that publishes nothing about its receive paths connect two nodes by routes. Their update to agents with a tunnel loses no packet.
func TestPrivilegedRolling_FromReleaseWithoutReceivePaths(t *testing.T) {
	t.Parallel()
	silent := agentWith(t, edited(t, filepath.Join("cells", "node", "ciliumnode", "wanted.go"), `; receives != ""`, `; receives == "nothing"`))
	for _, c := range []struct {
		name    string
		args    []string
		update  []string
		between reach
	}{
		{"routes", toNative, toTunnel, routed},
		{"tunnel", []string{"--routing-mode=tunnel"}, nil, tunnelled},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			cluster, all := newKubeCluster(t, 2, c.args...)
			for _, n := range all {
				n.UseAgent(silent)
			}
			startAgents(t, cluster)
			r := startRolling(t, all[0], all[1])
			r.log(t, "node-1 is updated")
			r.one.becomes(t, c.update...)
			shows(t, r.two.Node, "node get node-1", "vxlan:8472:ipv4+ipv6")
			reaches(t, r.one, map[string]reach{"node-2": c.between})

			r.log(t, "the agent of node-1 starts again")
			r.one.becomes(t)
			shows(t, r.one.Node, "node get node-1", "vxlan:8472:ipv4+ipv6")
			reaches(t, r.one, map[string]reach{"node-2": c.between})

			r.log(t, "node-2 is updated")
			r.two.becomes(t, c.update...)
			r.both(t, tunnelled)
			lostNothing(t, r.load)
			r.denials.end(t)
			r.onTheWire(t, true)
		})
	}
}

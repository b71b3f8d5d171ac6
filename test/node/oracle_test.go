package node_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/testseed"
	"github.com/waggle-net/waggle/test/nodekit"
	"github.com/waggle-net/waggle/test/nodekit/load"
)

// oracleMode is a routing mode between pods of different nodes.
type oracleMode struct {
	name     string
	args     []string
	tunnel   bool // nodes have the maps of a tunnel
	gateways bool // all routes lead to the addresses of nodes
	underlay int  // index of the family of outer headers
}

var (
	oracleTunnel = oracleMode{name: "tunnel", args: []string{"--routing-mode=tunnel"}, tunnel: true}
	oracleIPv6   = oracleMode{name: "tunnel over IPv6", args: []string{"--routing-mode=tunnel", "--underlay-protocol=ipv6"}, tunnel: true, underlay: 1}
	oracleNative = oracleMode{name: "native", args: []string{"--routing-mode=native", "--auto-direct-node-routes"}, gateways: true}
	oracleHybrid = oracleMode{name: "hybrid", args: []string{"--routing-mode=hybrid"}, tunnel: true}
)

// Sizes of pod ranges, and addresses of the underlay that each node has in addition to its own.
const oracleBits4, oracleBits6 = 24, 64

var (
	oracleBroadcast = netip.MustParseAddr("192.0.2.255")
	oracleAnycast   = netip.MustParseAddr("2001:db8:2::")
)

// Four nodes leave and join in a random sequence, are replaced, change their pod ranges and their addresses, and get other agents, while pods of all nodes
// exchange traffic, and often while the agent of another node is dead. An oracle knows at each moment which pods must reach each other: between these, no
// datagram is lost and no connection ends. No packet arrives that policy denies. After each event the kernel of every node holds exactly the current state.
func TestPrivilegedChurn_FourNodesUnderTraffic(t *testing.T) {
	t.Parallel()
	needBuilds(t)
	other, err := builds.Agent(nodekit.Build{Generation: otherGeneration})
	if err != nil {
		t.Fatal(err)
	}
	for _, mode := range oneOf(t, oracleTunnel, oracleNative, oracleHybrid, oracleIPv6) {
		t.Run(mode.name, func(t *testing.T) {
			t.Parallel()
			churnOfNodes(t, mode, other, func(n kubeNode, upgraded bool) {
				generation := thisGeneration
				if upgraded {
					generation = otherGeneration
				}
				requireGeneration(t, n.Node, generation)
			})
		})
	}
}

// TestPrivilegedRevision_FourNodesUnderTraffic does the same with nodes that change to the agent of another revision, and back.
func TestPrivilegedRevision_FourNodesUnderTraffic(t *testing.T) {
	t.Parallel()
	churnOfNodes(t, oracleTunnel, agentBefore(t), func(n kubeNode, _ bool) { requireReplaced(t, n.Node) })
}

// churnOfNodes performs the events of an oracle. replaced waits until all hooks of a node run the programs of its new agent.
func churnOfNodes(t *testing.T, mode oracleMode, other string, replaced func(n kubeNode, upgraded bool)) {
	t.Helper()
	o := newOracle(t, mode)
	o.other, o.replaced = other, replaced
	for range times(t, 1, 2) {
		o.round(t)
	}
	for _, n := range o.nodes { // the reported failures have ended
		shows(t, n.Node, "status", "4/4 reachable\n")
	}
	for _, f := range o.traffic.all() {
		if err := f.enough(); err != nil {
			t.Error(err)
		}
	}
	flowed := o.traffic.flowedFor().Round(time.Millisecond)
	o.traffic.mu.Lock()
	defer o.traffic.mu.Unlock()
	t.Logf("in %v: %d datagrams and %d messages that had to arrive, %d short connections, %d tries of what is denied",
		flowed, o.traffic.sent, o.traffic.words, o.traffic.connects, o.traffic.forbidden)
	if min(o.traffic.sent, o.traffic.words, o.traffic.connects, o.traffic.forbidden) == 0 {
		t.Error("there was no traffic of some kind")
	}
}

// oracle knows the present nodes and pods.
type oracle struct {
	mode    oracleMode
	random  *rand.Rand
	nodes   []*oracleNode
	traffic *oracleTraffic
	other   string // agent of an upgraded node
	made    int    // number of names so far
	young   bool   // flows have begun on a node whose agent was dead

	replaced func(n kubeNode, upgraded bool) // waits until the programs of that agent run

	mu      sync.Mutex          // guards the fields below, and the pods of nodes
	talkers []netip.Addr        // addresses that only talkers may reach
	were    map[netip.Addr]bool // addresses of current and former talkers, whose last packets may be in flight
}

// oracleNode is a node that may have left the cluster.
type oracleNode struct {
	kubeNode
	removed  bool // has left the cluster
	blind    bool // no agent runs
	upgraded bool
	addrs    [2]netip.Addr   // of eth0, of IPv4 and IPv6
	ranges   [2]netip.Prefix // of pods
	// Only talkers may reach the talker; all pods may reach the outcast.
	talker, outcast *nodekit.Pod
	heard           *tap // at the talker
	stops           []func()
}

func newOracle(t *testing.T, mode oracleMode) *oracle {
	t.Helper()
	c, all := newKubeCluster(t, 4, append([]string{"--k8s-snapshot-interval=1s"}, mode.args...)...)
	o := &oracle{mode: mode, random: testseed.New(t), traffic: startOracleTraffic(t), were: map[netip.Addr]bool{}}
	all[0].server.Put(&networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "talkers", UID: "u"},
		Spec: networkingv1.NetworkPolicySpec{PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "talker"}},
			Ingress: []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{
				PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "talker"}}}}}}}})
	for _, k := range all {
		n := &oracleNode{kubeNode: k, addrs: [2]netip.Addr{k.UplinkAddr(false), k.UplinkAddr(true)}}
		for i, text := range k.PodRanges() {
			n.ranges[i] = netip.MustParsePrefix(text)
		}
		o.nodes = append(o.nodes, n)
		o.put(n)
	}
	t.Cleanup(func() {
		for _, n := range o.nodes {
			n.stop()
		}
	})
	startAgents(t, c)
	for _, n := range o.nodes {
		o.populate(t, n)
	}
	for _, n := range o.nodes {
		t.Cleanup(o.traffic.forbid(n.Host(), func() []netip.Addr { return o.talkersBut(n) }))
	}
	end := o.takeTurn(t)
	o.check(t)
	end()
	return o
}

// oraclePause is the pause between two turns: the kernel wakes the tests that wait for the turn, and gives it to the first that requests it again.
const oraclePause = 200 * time.Millisecond

// takeTurn waits until no other test generates load, and runs the traffic until end is called.
func (o *oracle) takeTurn(t *testing.T) (end func()) {
	t.Helper()
	turn := load.TakeTurn(t)
	o.traffic.resume()
	return func() {
		o.traffic.awaitEnough(o.traffic.all())
		o.traffic.rest()
		if err := turn.Release(); err != nil {
			t.Error(err)
		}
		time.Sleep(oraclePause)
	}
}

// here returns the nodes of the cluster.
func (o *oracle) here() (here []*oracleNode) {
	for _, n := range o.nodes {
		if !n.removed {
			here = append(here, n)
		}
	}
	return here
}

func (n *oracleNode) pods() (pods []*nodekit.Pod) {
	for _, p := range []*nodekit.Pod{n.talker, n.outcast} {
		if p != nil {
			pods = append(pods, p)
		}
	}
	return pods
}

// number returns a number that has not been used yet.
func (o *oracle) number() int { o.made++; return o.made }

// put creates or updates the Node object of a node.
func (o *oracle) put(n *oracleNode) { o.putAs(n, types.UID("uid-"+n.Name())) }

func (o *oracle) putAs(n *oracleNode, uid types.UID) {
	ranges := []string{n.ranges[0].String(), n.ranges[1].String()}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name(), UID: uid}, Spec: corev1.NodeSpec{PodCIDR: ranges[0], PodCIDRs: ranges}}
	for _, addr := range n.addrs {
		node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: addr.String()})
	}
	n.server.Put(node)
}

// kill kills the agent of a node once its copy of the objects on disk has the current pod ranges of all nodes. An agent that starts with an older copy uses its
// previous pod ranges, which may belong to another node by then, if the first list of the API server fails or takes 5 s (cells/node/nodecidr). Agents of
// revisions without this wait use them at once.
func (o *oracle) kill(t *testing.T, n *oracleNode) {
	t.Helper()
	want := map[string][]string{}
	for _, m := range o.here() {
		want[m.Name()] = []string{m.ranges[0].String(), m.ranges[1].String()}
	}
	eventuallyWithin(t, 2*awaitFor, func() error { // the pause after a copy depends on the CPU time of the copy
		ranges, err := n.copiedRanges()
		if err == nil && !maps.EqualFunc(ranges, want, slices.Equal) {
			err = fmt.Errorf("the copy on disk of %s has the pod ranges %v, want %v", n.Name(), ranges, want)
		}
		return err
	})
	if err := n.KillAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// copiedRanges returns the pod ranges of all nodes in an agent's copy of the objects: a line about the file, and compressed rows
// (cells/kubernetes/k8stables/snapshot).
func (n *oracleNode) copiedRanges() (map[string][]string, error) {
	file, err := os.ReadFile(filepath.Join(n.Dir, "lib", "k8s-snapshot"))
	if err != nil {
		return nil, err
	}
	_, body, _ := bytes.Cut(file, []byte{'\n'})
	rows, err := gzip.NewReader(bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	ranges := map[string][]string{}
	for dec := json.NewDecoder(rows); ; {
		var row struct {
			Table string          `json:"t"`
			Row   json.RawMessage `json:"r"`
		}
		if err := dec.Decode(&row); errors.Is(err, io.EOF) {
			return ranges, nil
		} else if err != nil {
			return nil, err
		}
		if row.Table != "k8s-nodes" {
			continue
		}
		var node k8s.Node
		if err := json.Unmarshal(row.Row, &node); err != nil {
			return nil, err
		}
		ranges[node.Name] = node.PodCIDRs
	}
}

// oracleYouth is longer, by several seconds, than a node takes to end a flow that began under the address of the node because the range of the other pod was
// unknown. Such a flow keeps working through the tunnel, and would stop on the direct path (cells/datapath/ctgc).
const oracleYouth = 12 * time.Second

// check requires the kernels to hold the current state, all flows to be owed and to have lost nothing, and no denied packet to have arrived.
func (o *oracle) check(t *testing.T) {
	t.Helper()
	var waiting []*oracleFlow
	for _, f := range o.traffic.all() {
		if f.held() < 0 {
			waiting = append(waiting, f)
		}
	}
	if o.young && o.mode.name == oracleHybrid.name {
		time.Sleep(oracleYouth)
	}
	o.young = false
	began := time.Now()
	o.traffic.owe(t, waiting)
	reached := time.Since(began).Round(time.Millisecond)
	o.settled(t)
	settled := time.Since(began).Round(time.Millisecond)
	o.traffic.check(o.traffic.all())
	t.Logf("%v all nodes hold what is, after %v; %d flows were awaited for %v", o.traffic.at(), settled, len(waiting), reached)
	o.checkDenied(t)
	for _, fault := range o.traffic.takeFaults() {
		t.Error(fault)
	}
}

// checkDenied requires that talkers have received packets from talkers and their own node only.
func (o *oracle) checkDenied(t *testing.T) {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, n := range o.nodes {
		if n.heard == nil {
			continue
		}
		own := append(n.addrs[:], n.talker.Gateway(false), n.talker.Gateway(true))
		talkers := 0
		for _, source := range n.heard.sources() {
			switch {
			case o.were[source]:
				talkers++
			case !slices.Contains(own, source) && !source.IsLinkLocalUnicast() && !source.IsUnspecified():
				t.Errorf("%s has heard %s, %d packets, of which the first is %x", n.talker.Name, source, n.heard.from(source), n.heard.beginning(source))
			}
		}
		if talkers == 0 {
			t.Errorf("%s has received no packet of a talker", n.talker.Name)
		}
	}
}

// talkersBut returns the addresses of the talkers of other nodes.
func (o *oracle) talkersBut(n *oracleNode) []netip.Addr {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(o.talkers), func(a netip.Addr) bool { return n.talker != nil && slices.Contains(addrsOf(n.talker), a) })
}

// populate starts the pods of a node, which begin flows with all other pods.
func (o *oracle) populate(t *testing.T, n *oracleNode) {
	t.Helper()
	number := o.number()
	start := func(app string) *nodekit.Pod {
		return n.startPod(t, fmt.Sprintf("%s-%s-%d", app, n.Name(), number), map[string]string{"app": app})
	}
	talker, outcast := start("talker"), start("outcast")
	o.mu.Lock()
	n.talker, n.outcast, n.heard = talker, outcast, listenAll(t, talker)
	for _, addr := range addrsOf(talker) {
		o.talkers = append(o.talkers, addr)
		o.were[addr] = true
	}
	for _, addr := range addrsOf(outcast) { // a talker may have had it
		delete(o.were, addr)
		for _, m := range o.here() {
			if m.heard != nil {
				m.heard.forget(addr)
			}
		}
	}
	o.mu.Unlock()
	for _, p := range n.pods() {
		stop, err := o.traffic.serve(p)
		if err != nil {
			t.Fatal(err)
		}
		n.stops = append(n.stops, stop)
	}
	n.stops = append(n.stops, o.traffic.forbid(outcast, func() []netip.Addr {
		o.mu.Lock()
		defer o.mu.Unlock()
		return slices.Clone(o.talkers)
	}))
	talk := func(from, to *nodekit.Pod, streams bool) {
		for _, family := range families {
			if _, err := o.traffic.talk(from, to, family.ipv6, streams); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, m := range o.nodes {
		if m == n || m.talker == nil {
			continue
		}
		o.young = o.young || m.blind
		talk(n.talker, m.talker, true)
		talk(m.talker, n.talker, true)
		talk(n.outcast, m.outcast, false)
		talk(m.outcast, n.outcast, false)
	}
}

// stop ends the servers and senders of a node's pods.
func (n *oracleNode) stop() {
	for _, stop := range n.stops {
		stop()
	}
	n.stops = nil
}

// flowsOf returns the flows of the pods of a node.
func (o *oracle) flowsOf(n *oracleNode) (flows []*oracleFlow) {
	for _, f := range o.traffic.all() {
		if slices.Contains(n.pods(), f.from) || slices.Contains(n.pods(), f.to) {
			flows = append(flows, f)
		}
	}
	return flows
}

// silence ends all flows and listeners of a node's pods, and returns the pods, which the caller removes.
func (o *oracle) silence(t *testing.T, n *oracleNode) []*nodekit.Pod {
	t.Helper()
	flows := o.flowsOf(n)
	o.traffic.release(flows)
	for _, f := range flows {
		f.end()
	}
	n.stop()
	o.checkDenied(t)
	pods := n.pods()
	o.mu.Lock()
	defer o.mu.Unlock()
	o.talkers = slices.DeleteFunc(o.talkers, func(a netip.Addr) bool { return slices.Contains(addrsOf(n.talker), a) })
	n.talker, n.outcast, n.heard = nil, nil, nil
	return pods
}

// forgetPods deletes the objects of pods, as Kubernetes does.
func (n *oracleNode) forgetPods(pods []*nodekit.Pod) {
	for _, p := range pods {
		n.server.Remove(kubeapi.Pods, "default", p.Name)
		n.server.Remove(kubeapi.CiliumEndpoints, "default", p.Name)
	}
}

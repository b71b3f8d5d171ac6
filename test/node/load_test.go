package node_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/waggle-net/waggle/test/nodekit"
	"github.com/waggle-net/waggle/test/nodekit/load"
)

// traffic is a load on a node without other pods.
type traffic struct {
	*load.Load
	node *nodekit.Node
	pods []*nodekit.Pod
	none *isolation // traffic that policies deny
}

// roomy has addresses for all pods of a long run: an address stays in quarantine for a while when its pod is deleted.
func roomy() nodekit.Options { return nodekit.Options{IPv4CIDR: "10.244.0.0/16"} }

// startTraffic attaches pods to a roomy node and starts traffic between pods, the node and a host outside in both families, as policies allow, while one of the
// pods sends spoofed packets and others try connections that policies deny.
func startTraffic(t *testing.T, node *nodekit.Node, rates load.Rates) *traffic {
	t.Helper()
	isolate(t, node)
	a, b, c := addPod(t, node, "talker-a"), addPod(t, node, "talker-b"), addPod(t, node, "talker-c")
	if err := node.RouteFromOutside("10.244.0.0/16", "fd00:10:244:1::/64"); err != nil {
		t.Fatal(err)
	}
	var paths []load.Path
	for _, f := range families {
		outside := nodekit.OutsideIPv4.Addr()
		if f.ipv6 {
			outside = nodekit.OutsideIPv6.Addr()
		}
		for _, p := range []load.Path{
			{Name: "pod to pod", From: a, To: b, Addr: b.Addr(f.ipv6)},
			{Name: "pod to pod and back", From: c, To: a, Addr: a.Addr(f.ipv6)},
			{Name: "pod to node", From: b, To: node.Host(), Addr: b.Gateway(f.ipv6)},
			{Name: "node to pod", From: node.Host(), To: c, Addr: c.Addr(f.ipv6)},
			{Name: "pod to outside", From: a, To: node.OutsideHost(), Addr: outside},
			{Name: "outside to pod", From: node.OutsideHost(), To: b, Addr: b.Addr(f.ipv6)},
		} {
			p.Name += " " + f.name
			paths = append(paths, p)
		}
	}
	spoofer, victim := addPod(t, node, "liar"), addPod(t, node, "victim")
	l := load.StartFor(t, rates, paths, probes(t, node, spoofer, victim, b))
	return &traffic{Load: l, node: node, pods: []*nodekit.Pod{a, b, c, spoofer, victim}, none: startForbidden(t, node, a)}
}

// probes returns spoofed packets of a pod with a false address or MAC, towards another pod and the node.
func probes(t *testing.T, node *nodekit.Node, spoofer, victim, other *nodekit.Pod) (all []load.Probe) {
	t.Helper()
	e := endsOf(t, spoofer)
	for _, f := range families {
		self := spoofer.Addr(f.ipv6)
		sources := []netip.Addr{netip.MustParseAddr("10.244.1.250"), other.Addr(f.ipv6), spoofer.Gateway(f.ipv6), outsideAddr(f.ipv6)}
		if f.ipv6 {
			sources[0] = netip.MustParseAddr("fd00:10:244:1::bad")
		}
		for _, to := range []struct {
			name string
			at   nodekit.NetNS
			addr netip.Addr
		}{{"pod", victim, victim.Addr(f.ipv6)}, {"node", node.Host(), spoofer.Gateway(f.ipv6)}} {
			p := load.Probe{Name: "lies to the " + to.name + " " + f.name, From: spoofer, Device: "eth0", To: to.at,
				Addr: netip.AddrPortFrom(to.addr, 2222), Honest: udp(t, e.pod, e.peer, self, to.addr, 64)}
			p.Lies = append(p.Lies, udp(t, foreignMAC, e.peer, self, to.addr, 64))
			for _, source := range sources {
				p.Lies = append(p.Lies, udp(t, e.pod, e.peer, source, to.addr, 64))
			}
			all = append(all, p)
		}
	}
	return all
}

// shortest is the minimum duration of traffic. A pause of the generator may take a second on kernels without preemption. More than half of such traffic remains
// then, and less is no proof, see [load.Report.Err].
const shortest = 4 * time.Second

// ended ends a load, and returns and logs its report.
func ended(t *testing.T, l *load.Load) load.Report {
	t.Helper()
	l.LastAtLeast(shortest)
	r, err := l.Stop()
	if err != nil {
		t.Fatal(err)
	}
	t.Log(r)
	return r
}

// lostNothing ends a load and reports whether nothing was lost and there was enough traffic; otherwise the test fails.
func lostNothing(t *testing.T, l *load.Load) bool {
	t.Helper()
	err := ended(t, l).Err()
	if err != nil {
		t.Errorf("traffic was disturbed, or there was too little:\n%v", err)
	}
	return err == nil
}

// end requires that no traffic was interrupted and no denied packet passed, and detaches the pods.
func (l *traffic) end(t *testing.T) {
	t.Helper()
	if !lostNothing(t, l.Load) {
		for _, command := range [][]string{{"status"}, {"drops"}} {
			text, err := l.node.Waggle(t.Context(), command...)
			t.Logf("waggle %s: %v\n%s", command[0], err, text)
		}
	}
	l.none.end(t, l.node)
	for _, pod := range l.pods {
		if err := pod.Detach(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// logf logs a message with a time that is comparable to the times of the report.
func (l *traffic) logf(t *testing.T, format string, args ...any) {
	t.Helper()
	t.Logf("%v %s", l.At(), fmt.Sprintf(format, args...))
}

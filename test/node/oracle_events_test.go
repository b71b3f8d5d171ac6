package node_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/test/nodekit"
)

// round performs each event once, in a random order. Loads of other tests run between events, while the traffic pauses.
func (o *oracle) round(t *testing.T) {
	t.Helper()
	type event struct {
		what string
		do   func(*testing.T, *oracleNode)
	}
	const upgrade = "gets another agent"
	events := []event{{"leaves and comes back", o.leavesAndReturns}, {"is replaced", o.isReplaced}, {"gets other pod ranges", o.getsRanges},
		{"exchanges its pod ranges with the next", o.exchangesRanges}, {"gets other addresses", o.getsAddresses}, {"has its agent killed", o.agentIsKilled},
		{upgrade, o.getsAnotherAgent}, {upgrade, o.getsAnotherAgent}}
	if soaks() && o.mode.tunnel { // without a tunnel other nodes report it later, see TestPrivilegedNodeHealth_NodeFailsAndRecovers
		events = append(events, event{"loses its link", o.losesItsLink})
	}
	o.random.Shuffle(len(events), func(i, j int) { events[i], events[j] = events[j], events[i] })
	for _, event := range events {
		i := o.random.IntN(len(o.nodes))
		if upgraded := slices.IndexFunc(o.nodes, func(n *oracleNode) bool { return n.upgraded }); event.what == upgrade && upgraded >= 0 {
			i = upgraded // the upgraded node is downgraded
		}
		end := o.takeTurn(t)
		n, other := o.nodes[i], o.nodes[(i+2)%len(o.nodes)] // neither the node nor the next one
		other.blind = o.random.IntN(2) == 0
		t.Logf("%v %s %s; the agent of %s is dead: %v", o.traffic.at(), n.Name(), event.what, other.Name(), other.blind)
		if other.blind {
			o.kill(t, other)
		}
		event.do(t, n)
		if other.blind {
			other.blind = false
			o.start(t, other)
		}
		o.check(t)
		end()
		if t.Failed() {
			t.FailNow() // otherwise one fault would cause many errors
		}
	}
}

// start starts the agent of a node.
func (o *oracle) start(t *testing.T, n *oracleNode) {
	t.Helper()
	if err := n.StartAgent(); err != nil {
		t.Fatal(err)
	}
	waitReady(t, n.Node)
}

// drain removes the pods of a node in order.
func (o *oracle) drain(t *testing.T, n *oracleNode) {
	t.Helper()
	pods := o.silence(t, n)
	for _, p := range pods {
		if err := errors.Join(p.Detach(t.Context()), p.Close()); err != nil {
			t.Fatal(err)
		}
	}
	n.forgetPods(pods)
}

// leavesAndReturns drains a node, removes it from the cluster, and adds it again.
func (o *oracle) leavesAndReturns(t *testing.T, n *oracleNode) {
	o.leave(t, n)
	n.removed = true
	o.check(t)
	n.removed = false
	o.rejoin(t, n)
}

// leave drains a node and deletes its Node and its CiliumNode. The test deletes the CiliumNode because no other component does so at once.
func (o *oracle) leave(t *testing.T, n *oracleNode) {
	t.Helper()
	o.drain(t, n)
	t.Logf("%v %s has no pods", o.traffic.at(), n.Name())
	if err := n.StopAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.server.Remove(kubeapi.Nodes, "", n.Name())
	n.server.Remove(kubeapi.CiliumNodes, "", n.Name())
}

// rejoin creates the object of a node that is new to the cluster, and starts its agent and its pods.
func (o *oracle) rejoin(t *testing.T, n *oracleNode) {
	t.Helper()
	o.putAs(n, types.UID(fmt.Sprintf("uid-%s-%d", n.Name(), o.number())))
	o.start(t, n)
	t.Logf("%v %s is ready and runs %s", o.traffic.at(), n.Name(), n.agent())
	o.populate(t, n)
	t.Logf("%v %s has pods", o.traffic.at(), n.Name())
}

// agent describes the agent of a node for the log.
func (n *oracleNode) agent() string {
	if n.upgraded {
		return "the other agent"
	}
	return "the agent of this revision"
}

// isReplaced ends a machine with all its state. Another machine with the same name and an empty disk replaces it, with the same addresses or others.
func (o *oracle) isReplaced(t *testing.T, n *oracleNode) {
	pods := o.silence(t, n)
	if err := n.KillAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, p := range pods {
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
	}
	number := o.number()
	if o.random.IntN(2) == 0 {
		o.readdress(t, n)
	}
	if err := errors.Join(forgetBoot(n.Node), os.RemoveAll(filepath.Join(n.Dir, "lib")), os.RemoveAll(filepath.Join(n.Dir, "cni-cache"))); err != nil {
		t.Fatal(err)
	}
	o.announce(t, n, net.HardwareAddr{2, 0, 0, 0, byte(number >> 8), byte(number)})
	n.forgetPods(pods)
	if o.random.IntN(2) == 0 {
		n.ranges = o.otherRanges()
	}
	n.server.Remove(kubeapi.CiliumNodes, "", n.Name())
	o.rejoin(t, n)
}

// getsRanges removes a node and adds it again with other pod ranges. The machine stays.
func (o *oracle) getsRanges(t *testing.T, n *oracleNode) {
	o.leave(t, n)
	n.ranges = o.otherRanges()
	o.rejoin(t, n)
}

// exchangesRanges removes two nodes and adds them again, each with the pod ranges of the other.
func (o *oracle) exchangesRanges(t *testing.T, n *oracleNode) {
	next := o.nodes[(slices.Index(o.nodes, n)+1)%len(o.nodes)]
	o.leave(t, n)
	o.leave(t, next)
	n.ranges, next.ranges = next.ranges, n.ranges
	o.rejoin(t, n)
	o.rejoin(t, next)
}

// oracleRanges is the number of pod ranges and addresses. It is small, so that nodes get ranges and addresses of other nodes' past.
const oracleRanges = 7

// otherRanges returns pod ranges that no node has.
func (o *oracle) otherRanges() (ranges [2]netip.Prefix) {
	for {
		number := 1 + o.random.IntN(oracleRanges)
		ranges[0] = netip.MustParsePrefix(fmt.Sprintf("10.244.%d.0/%d", number, oracleBits4))
		ranges[1] = netip.MustParsePrefix(fmt.Sprintf("fd00:10:244:%x::/%d", number, oracleBits6))
		if !slices.ContainsFunc(o.nodes, func(n *oracleNode) bool { return n.ranges == ranges }) {
			return ranges
		}
	}
}

// readdress gives eth0 of a node addresses that no node has, though another node may have had them.
func (o *oracle) readdress(t *testing.T, n *oracleNode) {
	t.Helper()
	var now [2]netip.Addr
	for taken := true; taken; taken = slices.ContainsFunc(o.nodes, func(m *oracleNode) bool { return m.addrs[0] == now[0] }) {
		number := o.random.IntN(oracleRanges)
		now = [2]netip.Addr{netip.MustParseAddr(fmt.Sprintf("192.0.2.%d", 10+number)), netip.MustParseAddr(fmt.Sprintf("2001:db8:2::%x", 0x10+number))}
	}
	if err := n.Do(func() error {
		var errs []error
		for i, bits := range []int{nodekit.UplinkIPv4.Bits(), nodekit.UplinkIPv6.Bits()} {
			errs = append(errs, delAddr("eth0", netip.PrefixFrom(n.addrs[i], bits)), addAddr("eth0", netip.PrefixFrom(now[i], bits)))
		}
		return errors.Join(append(errs, linkNamed("eth0", func(link netlink.Link) error { // it was deleted with the previous address
			return netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: nodekit.OutsideIPv4.Addr().AsSlice()})
		}))...)
	}); err != nil {
		t.Fatal(err)
	}
	n.addrs = now
}

// announce lets all other nodes learn the addresses of a node and of its NIC, as a machine does when it gets an address.
func (o *oracle) announce(t *testing.T, n *oracleNode, nic net.HardwareAddr) {
	t.Helper()
	err := n.Do(func() error {
		return errors.Join(setSysctl("ipv4/conf/eth0/arp_notify", "1"), setSysctl("ipv6/conf/eth0/ndisc_notify", "1"),
			linkNamed("eth0", func(link netlink.Link) error {
				if nic == nil {
					nic = link.Attrs().HardwareAddr
				}
				return netlink.LinkSetHardwareAddr(link, nic)
			}))
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range o.nodes {
		for i := range families {
			if m != n {
				eventually(t, func() error { return nodekit.PingBriefly(n.Host(), m.addrs[i], 56) })
			}
		}
	}
}

// getsAddresses changes the addresses of a node while its pods keep their connections.
func (o *oracle) getsAddresses(t *testing.T, n *oracleNode) {
	o.traffic.release(o.flowsOf(n))
	o.readdress(t, n)
	o.announce(t, n, nil)
	var object corev1.Node
	if !n.server.Get(kubeapi.Nodes, "", n.Name(), &object) {
		t.Fatal("there is no Node")
	}
	o.putAs(n, object.UID)
}

// agentIsKilled kills the agent and starts it again within a second.
func (o *oracle) agentIsKilled(t *testing.T, n *oracleNode) {
	o.kill(t, n)
	time.Sleep(time.Duration(o.random.Int64N(int64(time.Second))))
	o.start(t, n)
}

// getsAnotherAgent upgrades a node or downgrades it.
func (o *oracle) getsAnotherAgent(t *testing.T, n *oracleNode) {
	n.upgraded = !n.upgraded
	agent := ""
	if n.upgraded {
		agent = o.other
	}
	if err := n.UpgradeAgent(t.Context(), agent); err != nil {
		t.Fatal(err)
	}
	o.replaced(n.kubeNode, n.upgraded)
}

// losesItsLink disconnects a node, waits until all running agents report that, and connects the node again. Connections survive.
func (o *oracle) losesItsLink(t *testing.T, n *oracleNode) {
	o.traffic.release(o.flowsOf(n))
	if err := setPort(n.Node, false); err != nil {
		t.Fatal(err)
	}
	for _, m := range o.here() {
		if m != n && !m.blind {
			shows(t, m.Node, "status", "node "+n.Name()+" does not answer at all")
		}
	}
	if err := setPort(n.Node, true); err != nil {
		t.Fatal(err)
	}
}

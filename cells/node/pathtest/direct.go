package pathtest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/cilium/statedb"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/icmpecho"
	"github.com/waggle-net/waggle/pkg/mac"
	"github.com/waggle-net/waggle/pkg/onlink"
	"github.com/waggle-net/waggle/pkg/printable"
	"github.com/waggle-net/waggle/pkg/tables/devices"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/tables/pathtests"
)

const (
	// directInterval is the time between two tests of a node that is reached directly (not through the tunnel) and that flows use. Until a fault has a verdict,
	// packets are lost.
	directInterval = 5 * time.Second
	// directSuspectInterval is the time between two tests of a node that is reached directly and whose last direct test failed, until there is a verdict.
	directSuspectInterval = 500 * time.Millisecond
	// directIdleInterval is the interval of a node that is reached directly without known flows. It is short because old connections are not known.
	directIdleInterval = 15 * time.Second
	// directRate limits the tests per second of nodes whose direct test failed, and of nodes that are reached directly without known flows.
	directRate = 5
)

// direct is a test of the direct path, which bypasses the tunnel.
type direct struct {
	why  string // the reason why the test is not run; empty when it is
	used bool   // packets to the node already bypass the tunnel
	hops []hop  // one per family
	// address returns the link address of a hop. It waits until the kernel has resolved the address.
	address func(ctx context.Context, k kernel, h hop) (mac.Addr, error)
}

// hop is the direct path to a node in one family.
type hop struct {
	from   netip.Addr // address of this node in its pod range
	to     netip.Addr // address of the other node in its pod range
	next   netip.Addr // next hop: the neighbor address of the other node
	device *devices.Device
}

func (h hop) String() string { return fmt.Sprintf("by way of %s on %s", h.next, h.device.Name) }

var errNoReply = errors.New("no reply")

// lost is the error of a request on the direct path.
type lost struct {
	hop hop
	err error
}

func (l lost) Error() string {
	return fmt.Sprintf("from %s to %s %s: %v", l.hop.from, l.hop.to, l.hop, l.err)
}
func (l lost) Unwrap() error { return l.err }

// do runs the test. It passes only if it passes in each family.
func (d *direct) do(ctx context.Context, k kernel) (o outcome) {
	for _, h := range d.hops {
		if o = d.ask(ctx, k, h); o.err != nil {
			if errors.Is(o.err, context.DeadlineExceeded) {
				o.err = errNoReply
			}
			return outcome{err: lost{h, o.err}}
		}
	}
	return o
}

func (d *direct) ask(ctx context.Context, k kernel, h hop) outcome {
	ctx, cancel := context.WithTimeout(ctx, echoTimeout)
	defer cancel()
	addr, err := d.address(ctx, k, h)
	if err != nil {
		return outcome{err: err}
	}
	return echo(ctx, k, icmpecho.Request{To: h.to, From: h.from, Hop: &icmpecho.Hop{Link: h.device.Index, MAC: addr}}, echoTimeout)
}

// pastTunnel returns the direct test of a node.
func (t *tester) pastTunnel(to *target) *direct {
	row := to.row(pathtests.Direct)
	d := &direct{used: row != nil && row.State == pathtests.Passed, address: t.linkAddress}
	d.hops, d.why = t.hops(t.db.ReadTxn(), to.name)
	return d
}

// hops returns the direct path to a node in each family in which it has pods, or the reason why there is none.
func (t *tester) hops(txn statedb.ReadTxn, name string) (hops []hop, why string) {
	node, _, found := t.in.Nodes.Get(txn, nodes.ByName(name))
	self, _, known := t.in.Nodes.Get(txn, nodes.ByName(t.in.Agent.NodeName))
	if !found || !known {
		return nil, "the addresses of the nodes are not known"
	}
	for _, n := range []*nodes.Node{self, node} {
		if !n.Receives.AcceptsDirect() {
			return nil, fmt.Sprintf("node %s publishes that it receives packets only through its tunnel (its routing mode is tunnel, or its firewall drops packets of pods)", printable.Short(n.Name, maxDetail))
		}
	}
	network := t.network(txn)
	for _, ipv6 := range []bool{false, true} {
		if ipv6 && !t.in.Agent.EnableIPv6 || !ipv6 && !t.in.Agent.EnableIPv4 ||
			!slices.ContainsFunc(node.CIDRs, func(p netip.Prefix) bool { return p.Addr().Is6() == ipv6 }) {
			continue
		}
		h := hop{from: insideOf(self, ipv6), to: insideOf(node, ipv6), next: node.Address(ipv6)}
		if !h.from.IsValid() || !h.to.IsValid() || !h.next.IsValid() {
			return nil, "one of the nodes publishes no address of a family in which the other has pods"
		}
		var err error
		if h.device, err = network.Device(h.next); err != nil {
			return nil, "the node is not on the same link: " + err.Error()
		}
		hops = append(hops, h)
	}
	if len(hops) == 0 {
		return nil, "the node has no pod range"
	}
	return hops, ""
}

// insideOf returns an address of a node in its pod range. The health address is preferred: an echo request from the router address would tell the peer that
// this node reaches it through the tunnel.
func insideOf(n *nodes.Node, ipv6 bool) netip.Addr {
	if addr := n.Typed(nodes.HealthIP, ipv6); addr.IsValid() {
		return addr
	}
	return n.Typed(nodes.CiliumInternalIP, ipv6)
}

// links caches the networks of this node, with the revisions of the tables from which they were computed.
type links struct {
	routes, devices statedb.Revision
	network         *onlink.Network
}

func (t *tester) network(txn statedb.ReadTxn) *onlink.Network {
	now := links{routes: t.in.Routes.Revision(txn), devices: t.in.Devices.Revision(txn), network: t.links.network}
	if now != t.links || now.network == nil {
		now.network = onlink.Read(statedb.Collect(t.in.Routes.All(txn)), statedb.Collect(t.in.Devices.All(txn)))
		t.links = now
	}
	return now.network
}

// usable is the set of neighbor states with a link address that the kernel uses.
const usable = unix.NUD_PERMANENT | unix.NUD_NOARP | unix.NUD_REACHABLE | unix.NUD_PROBE | unix.NUD_STALE | unix.NUD_DELAY

// linkAddress implements [direct.address]. If the kernel has no link address, it sends an echo request to the neighbor, so that the kernel resolves it.
func (t *tester) linkAddress(ctx context.Context, k kernel, h hop) (mac.Addr, error) {
	if h.device.MAC.IsZero() {
		return mac.Addr{}, nil // a link without link addresses
	}
	ctx, cancel := context.WithCancel(ctx)
	var asking sync.WaitGroup
	defer asking.Wait()
	defer cancel()
	for asked := false; ; {
		row, _, changed, found := t.in.Neighbors.GetWatch(t.db.ReadTxn(), devices.NeighborByID(h.next.String()+"@"+strconv.Itoa(h.device.Index)))
		if found && row.State&usable != 0 && !row.MAC.IsZero() {
			return row.MAC, nil
		}
		if !asked {
			asked = true
			asking.Go(func() { _, _ = k.Echo(ctx, icmpecho.Request{To: h.next}) })
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return mac.Addr{}, errors.New("its link address is not known")
		}
	}
}

// doubted reports whether packets bypass the tunnel although the last direct test failed.
func doubted(row *pathtests.Test) bool {
	return row != nil && row.State == pathtests.Passed && row.Strikes > 0
}

// nextDirect returns the longest time until the next visit that the direct test allows.
func (t *tester) nextDirect(to *target) time.Duration {
	row := to.row(pathtests.Direct)
	if row == nil || row.State == pathtests.Unknown && row.Passes == 0 {
		return math.MaxInt64
	}
	all := time.Duration(len(t.targets)) * time.Second / directRate
	switch {
	case row.State != pathtests.Passed:
		return max(failedInterval, all)
	case to.flows:
		return max(directInterval, time.Duration(t.users.count)*time.Second/flowsRate)
	}
	return max(directIdleInterval, all)
}

// directly evaluates the direct test of a visit. A request that this node cannot send fails a test that had passed, because an untested path must not be used.
func (v *visit) directly(row *pathtests.Test) finding {
	err, name := v.results.direct.err, v.target.shown()
	switch {
	case v.past.why != "":
		return unknown(v.past.why)
	case err == nil:
		return passed().withDetail(v.past.hops[0].String())
	case errors.Is(err, icmpecho.ErrLocal) && row.State != pathtests.Passed:
		return unknown(err.Error())
	case v.results.echo.err != nil && v.results.host.err != nil:
		return failed(pathtests.Dead).withDetail(fmt.Sprintf("node %s does not answer at all", name)).withRemedy("check that it runs, and that the network between the nodes is up")
	}
	return failed(pathtests.NotDirect).withDetail(fmt.Sprintf("packets of pods to node %s are lost past the tunnel, %v", name, err)).
		withRemedy(fmt.Sprintf("turn off the check of source and destination of machines in a cloud, let firewalls pass addresses of pods, set rp_filter of the devices of node %s to 0 or 2; "+
			"or use --routing-mode=tunnel", name))
}

// rtt returns the measured round-trip time of a test.
func (r *results) rtt(kind pathtests.Kind) time.Duration {
	if kind == pathtests.Direct {
		return r.direct.rtt
	}
	return r.echo.rtt
}

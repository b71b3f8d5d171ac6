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
	"github.com/waggle-net/waggle/pkg/tables/devices"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
	tables "github.com/waggle-net/waggle/pkg/tables/pathtests"
)

const (
	// directInterval is the time between two tests of a node that is reached past the tunnel and that flows use: as long as a fault has no verdict, packets
	// are lost.
	directInterval = 5 * time.Second
	// directSuspectInterval is the time between two tests of a node that is reached past the tunnel and whose last test there failed, until there is a verdict.
	directSuspectInterval = 500 * time.Millisecond
	// directIdleInterval is the same for one that flows are not known to use: old connections are not known.
	directIdleInterval = 15 * time.Second
	// directRate limits the nodes in a second that are tested because direct failed, or because they are reached past the tunnel without known flows.
	directRate = 5
)

// direct is a test past the tunnel.
type direct struct {
	why  string // why it is not made; empty when it is
	used bool   // packets to the node go past the tunnel already
	hops []hop  // one in each family
	// address returns the link address of a hop. It waits until the kernel has it.
	address func(ctx context.Context, k kernel, h hop) (mac.Addr, error)
}

// hop is how packets get to a node past the tunnel.
type hop struct {
	from   netip.Addr // of this node, in its pod range
	to     netip.Addr // of the other node, likewise
	next   netip.Addr // by which the other node is a neighbour
	device *devices.Device
}

func (h hop) String() string { return fmt.Sprintf("by way of %s on %s", h.next, h.device.Name) }

var errNoReply = errors.New("no reply")

// lost is the error of a request past the tunnel.
type lost struct {
	hop hop
	err error
}

func (l lost) Error() string {
	return fmt.Sprintf("from %s to %s %s: %v", l.hop.from, l.hop.to, l.hop, l.err)
}
func (l lost) Unwrap() error { return l.err }

// do makes the test. It passes when it does in each family.
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

// pastTunnel returns the test of a node past the tunnel.
func (t *tester) pastTunnel(to *target) *direct {
	row := to.row(tables.Direct)
	d := &direct{used: row != nil && row.State == tables.Passed, address: t.linkAddress}
	d.hops, d.why = t.hops(t.db.ReadTxn(), to.name)
	return d
}

// hops returns how packets get to a node past the tunnel, in each family in which it has pods, or why they do not.
func (t *tester) hops(txn statedb.ReadTxn, name string) (hops []hop, why string) {
	node, _, found := t.in.Nodes.Get(txn, nodes.ByName(name))
	self, _, known := t.in.Nodes.Get(txn, nodes.ByName(t.in.Agent.NodeName))
	if !found || !known {
		return nil, "the addresses of the nodes are not known"
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

// insideOf is an address of a node in its pod range. The health address comes first: an echo request from the other one tells the peer that this node
// reaches it through the tunnel.
func insideOf(n *nodes.Node, ipv6 bool) netip.Addr {
	if addr := n.Typed(nodes.HealthIP, ipv6); addr.IsValid() {
		return addr
	}
	return n.Typed(nodes.CiliumInternalIP, ipv6)
}

// links are the networks of this node, as of revisions of the tables that they come from.
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

// usable are the states of a neighbour whose link address the kernel uses.
const usable = unix.NUD_PERMANENT | unix.NUD_NOARP | unix.NUD_REACHABLE | unix.NUD_PROBE | unix.NUD_STALE | unix.NUD_DELAY

// linkAddress implements [direct.address]. When the kernel does not have the address it asks the neighbour something, so that the kernel looks for it.
func (t *tester) linkAddress(ctx context.Context, k kernel, h hop) (mac.Addr, error) {
	if h.device.MAC.IsZero() {
		return mac.Addr{}, nil // a link without addresses
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

// doubted reports whether packets go past the tunnel, although the last test there failed.
func doubted(row *tables.Test) bool {
	return row != nil && row.State == tables.Passed && row.Strikes > 0
}

// nextDirect is the longest time until the next visit that the test past the tunnel permits.
func (t *tester) nextDirect(to *target) time.Duration {
	row := to.row(tables.Direct)
	if row == nil || row.State == tables.Unknown {
		return math.MaxInt64
	}
	all := time.Duration(len(t.targets)) * time.Second / directRate
	switch {
	case row.State == tables.Failed:
		return max(failedInterval, all)
	case to.flows:
		return max(directInterval, time.Duration(t.users.count)*time.Second/flowsRate)
	}
	return max(directIdleInterval, all)
}

// directly is what a visit says about the test past the tunnel. A request that this node cannot send fails a test that passed: what is not tested is not
// used.
func (v *visit) directly(row *tables.Test) finding {
	err, name := v.results.direct.err, v.target.shown()
	switch {
	case v.past.why != "":
		return unknown(v.past.why)
	case err == nil:
		return passed().says(v.past.hops[0].String())
	case errors.Is(err, icmpecho.ErrLocal) && row.State != tables.Passed:
		return unknown(err.Error())
	case v.results.echo.err != nil && v.results.host.err != nil:
		return failed(tables.Dead).says(fmt.Sprintf("node %s does not answer at all", name)).needs("see that it runs, and that the network between the nodes is up")
	}
	return failed(tables.NotDirect).says(fmt.Sprintf("packets of pods to node %s are lost past the tunnel, %v", name, err)).
		needs(fmt.Sprintf("turn off the check of source and destination of machines in a cloud, let firewalls pass addresses of pods, set rp_filter of the devices of node %s to 0 or 2; "+
			"or use --routing-mode=tunnel", name))
}

// rtt is the round-trip time that a test of a kind has measured.
func (r *results) rtt(kind tables.Kind) time.Duration {
	if kind == tables.Direct {
		return r.direct.rtt
	}
	return r.echo.rtt
}

package pathtest

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/printable"
	"github.com/waggle-net/waggle/pkg/tables/pathtests"
)

// strikes is the number of tests in a row that must fail before a path has failed: a single lost packet is not a fault.
const strikes = 3

// maxDetail limits text that contains the name of a node, in bytes.
const maxDetail = 120

// finding is the result of a visit for one kind of test.
type finding struct {
	state  pathtests.State
	fault  pathtests.Fault
	detail string
	remedy string
	bytes  int
}

func passed() finding                         { return finding{state: pathtests.Passed} }
func unknown(why string) finding              { return finding{state: pathtests.Unknown, detail: why} }
func failed(fault pathtests.Fault) finding    { return finding{state: pathtests.Failed, fault: fault} }
func (f finding) withDetail(s string) finding { f.detail = s; return f }
func (f finding) withRemedy(s string) finding { f.remedy = s; return f }

// noFamily is the reason why a node is not tested.
const noFamily = "this node and the other node publish no addresses of a common family in their pod ranges"

// findings evaluates a visit for each kind of test except direct. heard is the time at which the peer last sent an echo request through the tunnel.
func (v *visit) findings(a agentconfig.Agent, heard time.Time) map[pathtests.Kind]finding {
	if err := v.results.local(); err != nil {
		found := map[pathtests.Kind]finding{}
		for _, row := range v.target.rows {
			if row.State != pathtests.Failed && row.Kind != pathtests.Direct { // a known fault stays, because routes depend on the bytes that the path carries
				found[row.Kind] = unknown(printable.Short(err.Error(), maxDetail))
			}
		}
		return found
	}
	if len(v.requests) == 0 {
		return map[pathtests.Kind]finding{pathtests.Echo: unknown(noFamily), pathtests.Size: unknown(noFamily)}
	}
	if v.results.echo.err != nil {
		found := map[pathtests.Kind]finding{pathtests.Echo: v.lost(a, heard)}
		if v.target.row(pathtests.Echo).Strikes+1 >= strikes { // until then the other verdicts stay
			why := unknown("not tested, because echo fails")
			found[pathtests.Size], found[pathtests.Checksum], found[pathtests.Aggregate] = why, why, why
		}
		return found
	}
	found := map[pathtests.Kind]finding{pathtests.Echo: passed(), pathtests.Size: v.sizes(a.TunnelOverhead())}
	if v.results.fetched {
		found[pathtests.Checksum], found[pathtests.Aggregate] = v.tcpFindings(a.TunnelPort)
	}
	return found
}

// lost names the fault when no reply arrives through the tunnel, or without a tunnel from the addresses of pods.
func (v *visit) lost(a agentconfig.Agent, heard time.Time) finding {
	name, tunnelPort, where := v.target.shown(), a.TunnelPort, "through the tunnel"
	if !a.Tunnel() {
		where = "at its address for pods"
	}
	switch {
	case v.results.host.err != nil:
		return failed(pathtests.Dead).withDetail(fmt.Sprintf("node %s does not answer at all, neither %s nor at its address %s", name, where, v.peer.host)).
			withRemedy("check that it runs, and that the network between the nodes is up")
	case !a.Tunnel():
		return v.unrouted()
	case !heard.IsZero() && !heard.Before(v.target.suspected):
		return failed(pathtests.OneWay).withDetail(fmt.Sprintf("UDP port %d from this node to node %s is blocked (its packets arrive at this node)", tunnelPort, name)).
			withRemedy(fmt.Sprintf("let firewalls between the nodes and on node %s pass UDP port %d to %s", name, tunnelPort, v.peer.host))
	}
	return failed(pathtests.Blocked).withDetail(fmt.Sprintf("UDP port %d between this node and node %s is blocked (the node itself answers)", tunnelPort, name)).
		withRemedy(fmt.Sprintf("let firewalls between and on the nodes pass UDP port %d", tunnelPort))
}

// unrouted is the finding that without a tunnel packets of pods are lost although packets of the nodes arrive.
func (v *visit) unrouted() finding {
	name, r := v.target.shown(), v.results
	err := r.echo.err
	if errors.Is(err, context.DeadlineExceeded) {
		err = errNoReply
	}
	return failed(pathtests.NotDirect).withDetail(fmt.Sprintf("packets of pods to node %s are lost, from %s to %s: %v (the node itself answers)", name, r.asked.From, r.asked.To, err)).
		withRemedy(fmt.Sprintf("turn off the check of source and destination of machines in a cloud, let the network route the pod ranges of all nodes and firewalls pass addresses of pods, "+
			"set rp_filter of the devices of node %s to 0 or 2; or use --routing-mode=tunnel or hybrid", name))
}

// sizes evaluates the largest packet. Overhead is the size in bytes that the tunnel adds to a packet.
func (v *visit) sizes(overhead int) finding {
	r, name := v.results, v.target.shown()
	if r.sized.err == nil {
		f := passed()
		f.bytes = v.size
		return f
	}
	f := failed(pathtests.Large)
	f.bytes = r.fits
	carries := fmt.Sprintf("%d", r.fits)
	if r.fits == 0 {
		carries = fmt.Sprintf("less than %d", leastSize)
	}
	f = f.withDetail(fmt.Sprintf("the path to node %s carries %s of %d bytes", name, carries, v.size))
	if r.fits == 0 {
		return f.withRemedy("let the network between the nodes pass packets of the MTU of their devices, and let firewalls pass fragments")
	}
	return f.withRemedy(fmt.Sprintf("raise the MTU of the network between the nodes by %d, or set --mtu=%d on all nodes", v.size-r.fits, r.fits+overhead))
}

// tcpFindings evaluates the reply by TCP: its checksums, and the aggregation of many segments.
func (v *visit) tcpFindings(tunnelPort uint16) (sum, aggregate finding) {
	r, name := v.results, v.target.shown()
	switch {
	case errors.Is(r.fetch.err, syscall.ECONNREFUSED):
		why := unknown("the agent of the node does not answer")
		return why, why
	case r.fetch.err == nil && r.got < r.wanted: // the server does not support the request
		return passed(), unknown("the agent of the node sends no long responses")
	case r.fetch.err == nil && r.wanted < longReply:
		return passed(), unknown("not tested, because large packets are lost")
	case r.fetch.err == nil && !(r.slow() && v.peer.host.IsValid() && r.outside.err == nil && r.outside.rtt < r.fetch.rtt/4):
		return passed(), passed() // if the reply is also slow outside the tunnel, the tunnel is not the cause
	case r.control.err != nil:
		why := unknown("not tested, because packets of that size are lost")
		return why, why
	case r.outside.err != nil || !v.peer.host.IsValid():
		// A firewall for the port and a corrupt checksum cannot be distinguished.
		why := unknown("TCP to the agent of the node fails outside the tunnel as well")
		return why, why
	case r.got < shortReply:
		return v.checksumFinding(), unknown("not tested, because checksums are corrupted")
	}
	return passed(), failed(pathtests.Aggregates).withDetail(fmt.Sprintf("only single TCP segments from node %s arrive, aggregates that a device builds from them are lost", name)).
		withRemedy(fmt.Sprintf("let the firewall of this node (ufw, firewalld) pass UDP port %d, or turn off the aggregation: ethtool -K DEVICE rx-gro-hw off rx-udp-gro-forwarding off gro off; "+
			"or turn off the segmentation by the devices of node %s: ethtool -K DEVICE tx-udp_tnl-segmentation off tx-udp_tnl-csum-segmentation off", tunnelPort, name))
}

// checksumFinding is the finding that TCP is lost where ICMP passes: healed if TCP passes with checksums that the kernel completes.
func (v *visit) checksumFinding() finding {
	f := failed(pathtests.Corrupted).withRemedy("turn off its offloads for tunnels on both nodes: ethtool -K DEVICE tx-udp_tnl-segmentation off tx-udp_tnl-csum-segmentation off tx-checksum-ip-generic off")
	cause := "a device on the path corrupts checksums of packets inside the tunnel"
	if v.heals && v.results.healed.err == nil {
		f.state = pathtests.Healed
		return f.withDetail(fmt.Sprintf("the path to node %s is healed by checksums that the kernel computes: %s", v.target.shown(), cause))
	}
	if v.heals {
		cause += ", also checksums that the kernel computes"
	}
	return f.withDetail(fmt.Sprintf("TCP to node %s is lost inside the tunnel, although ICMP passes: %s", v.target.shown(), cause))
}

// after returns the row after a test that began at a given time.
func after(row *pathtests.Test, f finding, began time.Time, rtt time.Duration) *pathtests.Test {
	next := *row
	next.Tested = began
	switch {
	case f.state == pathtests.Healed:
		next.State, next.Fault, next.Detail, next.Remedy, next.Strikes, next.Good = pathtests.Healed, f.fault, f.detail, f.remedy, 0, began
	case f.state == pathtests.Unknown && row.Fault == pathtests.Corrupted: // the verdict stays, and so does the healing
	case f.state == pathtests.Passed:
		next.State, next.Fault, next.Detail, next.Remedy, next.Bytes, next.Strikes, next.Good = pathtests.Passed, "", "", "", f.bytes, 0, began
		next.RTT = rtt
	case f.state == pathtests.Unknown:
		next.State, next.Fault, next.Detail, next.Remedy, next.Bytes, next.Strikes = pathtests.Unknown, "", f.detail, "", 0, 0
	case row.Strikes+1 < strikes:
		next.Strikes++ // the last verdict stays
	default:
		next.State, next.Fault, next.Detail, next.Remedy, next.Bytes, next.Strikes = pathtests.Failed, f.fault, f.detail, f.remedy, f.bytes, strikes
	}
	return &next
}

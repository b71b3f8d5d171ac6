package ctgc

import (
	"net/netip"
	"time"

	"github.com/cilium/statedb"
	"github.com/gaissmai/bart"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/ctmap"
	"github.com/waggle-net/waggle/pkg/rows"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/tables/nodetraffic"
)

const (
	// trafficInterval is the maximum time between two passes in a cluster of several nodes, unless a flag fixes it: node-health probes nodes whose last reply
	// is older than some minutes.
	trafficInterval = 5 * time.Minute
	// trafficSpacing is the minimum time between two passes that record nodes. A full map is scanned twice a second.
	trafficSpacing = time.Minute
)

// traffic is the result of one pass for the flows with pods of other nodes.
type traffic struct {
	self   string
	began  time.Time
	tick   uint32                  // the same in ticks of the kernel
	ranges bart.Table[*nodes.Node] // by pod range
	before uint32                  // tick of the beginning of the last pass that recorded nodes; 0 before the first
	of     map[*nodes.Node]*[2]nodetraffic.Family
}

// observes reports whether passes record nodes.
func (c *collector) observes(txn statedb.ReadTxn) bool {
	return c.agent.HealthChecking && c.cluster.NumObjects(txn) > 1
}

// interval returns the time between two passes that no signal or removal requests.
func (c *collector) interval() time.Duration {
	if c.pace.Interval == 0 && c.observes(c.db.ReadTxn()) {
		return min(c.pace.current, trafficInterval)
	}
	return c.pace.current
}

// newTraffic starts to record nodes at the time now, in ticks. It returns nil if nodes are not recorded, or were less than trafficSpacing ago.
func (c *collector) newTraffic(now uint32) *traffic {
	txn := c.db.ReadTxn()
	if !c.observes(txn) || !c.observed.IsZero() && time.Since(c.observed) < trafficSpacing {
		return nil
	}
	t := &traffic{self: c.agent.NodeName, began: time.Now(), tick: now, before: c.observedTick, of: map[*nodes.Node]*[2]nodetraffic.Family{}}
	for node := range c.cluster.All(txn) {
		for _, p := range node.CIDRs {
			t.ranges.Insert(p, node)
		}
	}
	c.observed, c.observedTick = t.began, now
	return t
}

// see records a flow for the node of its peer. An entry has the time of its creation and whether there was a reply, but not the time of the peer's last packet:
// packets of both sides renew the expiry.
func (t *traffic) see(f *ctmap.Flow) {
	opened, here := f.Entry.Initiator != 0, f.Entry.Responder != 0
	if opened == here {
		return // no peer on another node
	}
	tuple := f.Tuple()
	peer := tuple.Initiator.Addr()
	if opened {
		peer = tuple.Responder.Addr()
	}
	node, found := t.ranges.Lookup(peer)
	if !found || node.Name == t.self {
		return
	}
	families := t.of[node]
	if families == nil {
		families = &[2]nodetraffic.Family{}
		t.of[node] = families
	}
	family := &families[familyOf(peer)]
	family.Flows++
	switch {
	case opened && f.Entry.Flags&bpf.CtReplied != 0, here && f.Established:
		age := int32(t.tick-f.Entry.Created) + 1 // in ticks, rounded up; negative for a flow that began after the pass
		if at := t.began.Add(-time.Duration(age) * bpf.CtDuration(1)); at.After(family.Answered) {
			family.Answered = at
		}
	case opened && f.Entry.Flags&bpf.CtResponderReset == 0 && int32(f.Entry.Created-t.before) >= 0:
		family.Unanswered++
	}
}

func familyOf(addr netip.Addr) int {
	if addr.Is6() {
		return 1
	}
	return 0
}

// publish replaces the rows by the rows of the pass. The known time of a reply stays while the node has flows.
func (t *traffic) publish(db *statedb.DB, table statedb.RWTable[*nodetraffic.Traffic]) {
	txn := db.WriteTxn(table)
	defer txn.Commit()
	want := make(map[string]*nodetraffic.Traffic, len(t.of))
	for node, families := range t.of {
		row := &nodetraffic.Traffic{Node: node.Name, UID: node.UID, IPv4: families[0], IPv6: families[1]}
		if old, _, found := table.Get(txn, nodetraffic.ByNode(node.Name)); found && old.UID == row.UID {
			row.IPv4.Answered, row.IPv6.Answered = later(row.IPv4.Answered, old.IPv4.Answered), later(row.IPv6.Answered, old.IPv6.Answered)
		}
		want[node.Name] = row
	}
	name := func(row *nodetraffic.Traffic) string { return row.Node }
	_ = rows.Replace(txn, table, table.All(txn), want, name, func(old, row *nodetraffic.Traffic) bool { return *old == *row })
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

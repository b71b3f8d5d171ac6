package ctgc

import (
	"fmt"
	"math"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/datapath/ctmap"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/tables/nodetraffic"
)

// newObserver returns a collector in a cluster of the given number of nodes, the first of which is this node.
func newObserver(t testing.TB, number int) *collector {
	t.Helper()
	db := statedb.New()
	cluster, err := nodes.NewTable(db)
	require.NoError(t, err)
	replied, err := nodetraffic.NewTable(db)
	require.NoError(t, err)
	txn := db.WriteTxn(cluster)
	for i := range number {
		_, _, err := cluster.Insert(txn, &nodes.Node{Name: fmt.Sprint("n", i), CIDRs: []netip.Prefix{netip.PrefixFrom(podOf(i, 0), 24)}})
		require.NoError(t, err)
	}
	txn.Commit()
	return &collector{access: &access{db: db, cluster: cluster, replied: replied, agent: agentconfig.Agent{NodeName: "n0", HealthChecking: true}}, pace: newPace(DefaultConfig)}
}

// podOf returns the address of a pod of the i-th node.
func podOf(i int, pod byte) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), pod})
}

// opened returns a flow that a pod of this node has initiated to a pod of another node.
func opened(node int, created uint32, replied bool) *ctmap.Flow {
	f := &ctmap.Flow{}
	var second bool
	f.Key, second = ctmap.KeyOf(bpf.CtFlow{Initiator: netip.AddrPortFrom(podOf(0, 7), 1000), Responder: netip.AddrPortFrom(podOf(node, 5), 80), Protocol: unix.IPPROTO_TCP})
	f.Entry = bpf.CtEntry{Initiator: 7, Created: created}
	if replied {
		f.Entry.Flags |= bpf.CtReplied
	}
	if second {
		f.Entry.Flags |= bpf.CtInitiatorSecond
	}
	return f
}

// The recorded time of a reply is not after the beginning of its flow, also when the clock of the kernel wraps around.
func TestTraffic_ReplyTime_NotAfterFlowStart(t *testing.T) {
	t.Parallel()
	for _, now := range []uint32{1000, 3, math.MaxUint32} {
		c := newObserver(t, 2)
		tr := c.newTraffic(now)
		const age = 10
		tr.see(opened(1, now-age, true))
		tr.see(opened(1, now-2*age, true))
		tr.publish(c.db, c.replied)
		row, _, _ := c.replied.Get(c.db.ReadTxn(), nodetraffic.ByNode("n1"))
		// Ticks are rounded down: the younger flow is less than age+1 ticks old, and its reply is younger.
		if got, want := tr.began.Sub(row.IPv4.Answered), bpf.CtDuration(age+1); got != want {
			t.Errorf("tick %d: the answer is %v old, want %v", now, got, want)
		}
	}
}

func TestTraffic_ScannedOnceAMinute(t *testing.T) {
	t.Parallel()
	c := newObserver(t, 2)
	if c.newTraffic(1) == nil || c.newTraffic(2) != nil {
		t.Error("want one look a minute")
	}
	if got := c.interval(); got != trafficInterval {
		t.Errorf("passes of an idle collector are %v apart, want %v", got, trafficInterval)
	}
	c.pace.current = 30 * time.Minute
	if got := c.interval(); got != trafficInterval {
		t.Errorf("passes are %v apart, want %v", got, trafficInterval)
	}
	c.pace.Interval = 30 * time.Minute
	if got := c.interval(); got != 30*time.Minute {
		t.Errorf("passes are %v apart, want what the flag says", got)
	}
	for name, c := range map[string]*collector{"one node": newObserver(t, 1), "health checking is off": newObserver(t, 2)} {
		if name != "one node" {
			c.agent.HealthChecking = false
		}
		c.pace.current = 30 * time.Minute
		if c.newTraffic(1) != nil || c.interval() != 30*time.Minute {
			t.Errorf("%s: flows are looked at for nothing", name)
		}
	}
}

// BenchmarkTraffic_131072Flows measures the part of a pass that a full map of flows with pods of 5,000 nodes adds.
func BenchmarkTraffic_131072Flows(b *testing.B) {
	c := newObserver(b, 5000)
	flows := make([]*ctmap.Flow, 1<<17)
	for i := range flows {
		flows[i] = opened(1+i%4999, uint32(1000+i%100), i%3 > 0)
	}
	b.ReportAllocs()
	for b.Loop() {
		c.observed = time.Time{}
		tr := c.newTraffic(2000)
		for _, f := range flows {
			tr.see(f)
		}
		tr.publish(c.db, c.replied)
	}
}

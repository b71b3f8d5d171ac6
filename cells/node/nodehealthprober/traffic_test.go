package nodehealthprober

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/tables/nodehealth"
	"github.com/waggle-net/waggle/pkg/tables/nodetraffic"
)

// insertTraffic inserts rows of node-traffic.
func (r *rig) insertTraffic(t *testing.T, rows ...*nodetraffic.Traffic) {
	t.Helper()
	txn := r.db.WriteTxn(r.traffic)
	defer txn.Commit()
	for _, row := range rows {
		_, _, err := r.traffic.Insert(txn, row)
		require.NoError(t, err)
	}
}

// recentTraffic returns the traffic of node i with a reply one second ago.
func recentTraffic(i int) *nodetraffic.Traffic {
	return &nodetraffic.Traffic{Node: nameOf(i), IPv4: nodetraffic.Family{Flows: 1, Answered: time.Now().Add(-time.Second)}}
}

// host returns the row of the host address of node i, or an empty one if there is none.
func (r *rig) host(i int) *nodehealth.Path {
	row, _, found := r.table.Get(r.db.ReadTxn(), nodehealth.ByPath(nameOf(i), nodehealth.Host4))
	if !found {
		return &nodehealth.Path{}
	}
	return row
}

// echoes returns the number of ICMP requests to node i.
func (f *fake) echoes(i int) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c := f.asked[addressOf(i)]; c != nil {
		return c.echo
	}
	return 0
}

// With traffic every four minutes a node is probed once in six intervals, for properties that traffic does not show. Without traffic it is probed again at
// once.
func TestApplyTraffic_RepliesToPods_NodesNotProbed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const number, used = 300, 50
		net := newFake()
		r := start(t, net, number)
		interval := r.options.interval(number)
		time.Sleep(interval)
		before := make([]int, number)
		for i := range before {
			before[i] = net.echoes(i)
		}
		const passes = 20
		pass := 4 * time.Minute
		for range passes {
			for i := 1; i <= used; i++ {
				r.insertTraffic(t, recentTraffic(i))
			}
			time.Sleep(pass)
		}
		intervals := int(passes * pass / interval)
		for i := 1; i < number; i++ {
			got := net.echoes(i) - before[i]
			switch {
			case i <= used && (got < intervals/(maxSpared+1) || got > intervals/maxSpared+1):
				t.Errorf("node %d answers pods and was probed %d times in %d intervals", i, got, intervals)
			case i > used && got < intervals-1:
				t.Errorf("node %d does not, and was probed %d times in %d intervals", i, got, intervals)
			}
		}
		if row := r.host(1); row.State() != nodehealth.Reachable || row.Evidence() != nodehealth.ByTraffic {
			t.Errorf("the state of a node that answers pods is %s by %q", row.State(), row.Evidence())
		}
		if row := r.host(used + 1); row.State() != nodehealth.Reachable || row.Evidence() != nodehealth.ByProbe {
			t.Errorf("the state of another node is %s by %q", row.State(), row.Evidence())
		}
		// The node dies, and its traffic ends.
		net.set(addressOf(1), wrong{errSilence, errSilence})
		time.Sleep(interval + 2*suspectInterval + 3*(probeTimeout+2*calmStep))
		if row := r.host(1); row.State() != nodehealth.Unreachable || row.Evidence() != nodehealth.ByProbe {
			t.Errorf("the state of a dead node is %s by %q", row.State(), row.Evidence())
		}
	})
}

// Requests of pods to a node get no reply: the node is probed at once, before other due nodes.
func TestApplyTraffic_NoReplies_NodesProbedImmediately(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const number = 300
		net := newFake()
		r := start(t, net, number)
		time.Sleep(r.options.interval(number))
		net.set(addressOf(7), wrong{errSilence, errSilence})
		row := recentTraffic(7)
		row.IPv4.Unanswered, row.IPv4.Answered = 1, time.Now().Add(-time.Hour)
		r.insertTraffic(t, row)
		before := net.echoes(7)
		time.Sleep(2 * calmStep)
		if net.echoes(7) == before {
			t.Error("the node was not probed")
		}
		time.Sleep(2*suspectInterval + 3*(probeTimeout+2*calmStep))
		if got := r.host(7).State(); got != nodehealth.Unreachable {
			t.Errorf("its state is %s, want unreachable after three probes", got)
		}
		// Replies to pods do not end the verdict: the ports of probes do not respond. The probes continue.
		before = net.echoes(7)
		r.insertTraffic(t, recentTraffic(7))
		time.Sleep(r.options.base + 2*calmStep)
		if got := r.host(7); got.State() != nodehealth.Unreachable || net.echoes(7) == before {
			t.Errorf("with answers of pods its state is %s after %d more requests", got.State(), net.echoes(7)-before)
		}
	})
}

func TestApplyTraffic_WithoutProbes_DeterminesState(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		net := newFake()
		for i := range 4 {
			net.set(addressOf(i), wrong{troubles["impeded"], troubles["impeded"]})
		}
		r := start(t, net, 4)
		time.Sleep(10 * time.Minute)
		other := recentTraffic(2)
		other.UID = "another machine"
		// A new machine gets the name and the pod range of the third node. The reply arrived before that.
		replaced := rowOf(3)
		txn := r.db.WriteTxn(r.nodes)
		_, _, err := r.nodes.Insert(txn, replaced)
		txn.Commit()
		require.NoError(t, err)
		old := recentTraffic(3)
		old.UID = replaced.UID
		r.insertTraffic(t, recentTraffic(1), other, old)
		time.Sleep(2 * calmStep)
		for i, want := range []nodehealth.State{nodehealth.Unknown, nodehealth.Reachable, nodehealth.Unknown, nodehealth.Unknown} {
			if got := r.host(i).State(); got != want {
				t.Errorf("the state of node %d is %s, want %s", i, got, want)
			}
			if got := r.host(i).Traffic; got.IsZero() != (i != 1) {
				t.Errorf("node %d has traffic of %v", i, got)
			}
		}
		for _, n := range r.api.status(r.db.ReadTxn(), time.Time{}).Nodes {
			known := n.Host.Primary.ICMP != nil && n.Host.Primary.ICMP.Status == "" && n.Host.Primary.ICMP.LastProbed != ""
			if want := n.Name == "default/"+nameOf(1); known != want {
				t.Errorf("the health API says of %s: %+v", n.Name, n.Host.Primary.ICMP)
			}
		}
	})
}

// Probes are lost, and pods get replies: there is no verdict.
func TestApplyTraffic_ReplyAfterFailedProbe_ClearsFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		net := newFake()
		net.set(addressOf(1), wrong{errSilence, errSilence})
		r := start(t, net, 2)
		for r.host(1).ICMP.Strikes == 0 {
			time.Sleep(100 * time.Millisecond)
		}
		row := recentTraffic(1)
		row.IPv4.Answered = time.Now()
		r.insertTraffic(t, row)
		time.Sleep(2 * calmStep)
		if got := r.host(1); got.ICMP.Strikes != 0 || got.State() != nodehealth.Reachable {
			t.Errorf("its state is %s with %d failed probes", got.State(), got.ICMP.Strikes)
		}
	})
}

// Through a tunnel both families take the same path.
func TestFamily_ThroughATunnel_IsBoth(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	row := &nodetraffic.Traffic{IPv4: nodetraffic.Family{Unanswered: 1}, IPv6: nodetraffic.Family{Unanswered: 2, Answered: now}}
	p := newRig(t, newFake(), 1).prober
	if got := p.family(row, nodehealth.Host4); !got.Answered.IsZero() || got.Unanswered != 1 {
		t.Errorf("without a tunnel: %+v", got)
	}
	if got := p.family(row, nodehealth.Health6); !got.Answered.Equal(now) || got.Unanswered != 2 {
		t.Errorf("of IPv6 without a tunnel: %+v", got)
	}
	p.agent.TunnelPort = 8472
	if got := p.family(row, nodehealth.Host4); !got.Answered.Equal(now) || got.Unanswered != 3 {
		t.Errorf("with a tunnel: %+v", got)
	}
}

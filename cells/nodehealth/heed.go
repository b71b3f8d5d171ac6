package nodehealth

import (
	"time"

	"github.com/cilium/statedb"

	tables "github.com/waggle-net/waggle/pkg/tables/nodehealth"
	"github.com/waggle-net/waggle/pkg/tables/nodetraffic"
)

// maxSpared is the time in intervals after which a node is probed although its pods answer, for what traffic does not show: whether the port of the agent
// is open, and which nodes the agent knows.
const maxSpared = 6

// heed reads what the flows of pods say of nodes. Nodes whose pods were asked and did not answer are due.
func (p *prober) heed(txn statedb.ReadTxn, u *update) {
	revision := p.traffic.Revision(txn)
	if revision == p.heeded {
		return
	}
	p.heeded = revision
	for _, t := range p.targets {
		t.used = false
	}
	for row := range p.traffic.All(txn) {
		t := p.targets[row.Node]
		if t == nil || t.uid() != row.UID {
			continue
		}
		t.used = true
		if due := t.began.Add(p.options.interval(len(p.targets))); t.due.After(due) {
			t.due = due // it was one of a sample
		}
		p.note(t, row, u)
	}
}

// note takes the answers of one node into its rows.
func (p *prober) note(t *target, row *nodetraffic.Traffic, u *update) {
	silent := false
	for i, path := range t.paths {
		family := p.family(row, path.Kind)
		silent = silent || family.Unanswered > 0 && !family.Answered.After(t.began)
		// An answer from before this agent knew the node may be that of another one with its pod range.
		if !family.Answered.After(path.Traffic) || !family.Answered.After(t.since) || path.Unasked != "" {
			continue
		}
		next := *path
		next.Traffic = family.Answered
		next.ICMP, next.HTTP = vindicated(next.ICMP, next.Traffic), vindicated(next.HTTP, next.Traffic)
		t.paths[i] = &next
		u.put = append(u.put, &next)
	}
	if now := time.Now(); silent && t.due.After(now) {
		t.due = now
	}
}

// family returns what the flows of the address family of a path say. Through a tunnel both families take the same path, so each speaks for both.
func (p *prober) family(row *nodetraffic.Traffic, kind tables.Kind) nodetraffic.Family {
	if !p.agent.Tunnel() {
		return row.Family(kind.IPv6())
	}
	both := row.IPv4
	both.Unanswered += row.IPv6.Unanswered
	if row.IPv6.Answered.After(both.Answered) {
		both.Answered = row.IPv6.Answered
	}
	return both
}

// vindicated returns a check after an answer to pods: probes that failed before it are no verdict. A verdict that stands is that of probes, which ask other
// ports than pods do.
func vindicated(c tables.Check, answered time.Time) tables.Check {
	if suspected(c) && answered.After(c.Asked) {
		c.Strikes, c.Error = 0, ""
	}
	return c
}

// spare returns when a visit is due that traffic makes needless now: an interval after the oldest answer of all addresses. It is zero when the visit is to
// be made.
func (t *target) spare(now time.Time, interval time.Duration) (due time.Time) {
	if t.view.followed || now.Sub(t.began) >= maxSpared*interval {
		return time.Time{}
	}
	for _, row := range t.paths {
		switch {
		case row.Unasked != "":
		case row.State() != tables.Reachable || suspected(row.ICMP) || suspected(row.HTTP) || now.Sub(row.Traffic) >= interval:
			return time.Time{}
		case due.IsZero() || row.Traffic.Add(interval).Before(due):
			due = row.Traffic.Add(interval)
		}
	}
	return due
}

package nodehealthprober

import (
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/tables/nodehealth"
	"github.com/waggle-net/waggle/pkg/tables/nodetraffic"
)

// maxSpared is the maximum time in intervals between two probes of a node whose pods reply. Traffic does not show whether the agent's port is open and which
// nodes the agent knows.
const maxSpared = 6

// applyTraffic applies the table node-traffic. Nodes are visited at once if requests to their pods got no reply.
func (p *prober) applyTraffic(txn statedb.ReadTxn, u *update) {
	revision := p.traffic.Revision(txn)
	if revision == p.trafficRevision {
		return
	}
	p.trafficRevision = revision
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
			t.due = due // the node was probed as part of a sample only
		}
		p.note(t, row, u)
		p.advance(t.due)
	}
}

// note applies the traffic of one node to its rows.
func (p *prober) note(t *target, row *nodetraffic.Traffic, u *update) {
	silent := false
	for i, path := range t.paths {
		family := p.family(row, path.Kind)
		silent = silent || family.Unanswered > 0 && !family.Answered.After(t.began)
		// A reply from before this agent knew the node may come from a previous node with the same pod range.
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

// family returns the traffic for the address family of a path. Through a tunnel both families take the same path, so the traffic of both is combined.
func (p *prober) family(row *nodetraffic.Traffic, kind nodehealth.Kind) nodetraffic.Family {
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

// vindicated returns a check after a reply to pods. The reply clears earlier failed probes that are no verdict yet. An existing verdict stays, because probes
// use other ports than pods.
func vindicated(c nodehealth.Check, answered time.Time) nodehealth.Check {
	if suspected(c) && answered.After(c.Asked) {
		c.Strikes, c.Error = 0, ""
	}
	return c
}

// spare returns the next due time if traffic makes a visit unnecessary: one interval after the oldest traffic of all addresses. It returns zero if the visit is
// necessary.
func (t *target) spare(now time.Time, interval time.Duration) (due time.Time) {
	if t.view.followed || now.Sub(t.began) >= maxSpared*interval {
		return time.Time{}
	}
	for _, row := range t.paths {
		switch {
		case row.Unasked != "":
		case row.State() != nodehealth.Reachable || suspected(row.ICMP) || suspected(row.HTTP) || now.Sub(row.Traffic) >= interval:
			return time.Time{}
		case due.IsZero() || row.Traffic.Add(interval).Before(due):
			due = row.Traffic.Add(interval)
		}
	}
	return due
}

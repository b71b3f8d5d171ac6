package nodehealthprober

import (
	"fmt"
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/tables/nodeviews"
)

const (
	// viewTimeout is the time for which a difference between two agents must stay the same before it is reported. While a node joins or leaves, one agent may know
	// it before the other does; the next node causes another difference.
	viewTimeout = time.Minute
	// maxFollowed limits the nodes that are probed each viewTimeout because their agents differ. If all agents differ from this one, a few of them are enough to
	// find out.
	maxFollowed = 16
	// shownViews limits the differences in a health message.
	shownViews = 3
)

// difference compares the nodes that two agents know.
type difference struct {
	sum   uint64 // XOR of the hashes of nodes that differ
	nodes int    // number of nodes of the peer minus the number of this agent
}

// comparison is the result of the last replies of a node about the nodes that its agent knows.
type comparison struct {
	agrees   bool            // the last reply had the digest of this agent
	last     difference      // difference of the last reply
	since    time.Time       // start of the first visit in a row with the same difference; zero when the last reply did not differ
	followed bool            // the node is probed again after viewTimeout
	row      *nodeviews.View // reported difference; nil if none is reported
}

// compare evaluates the digest in a reply of a node, nil without a digest, for a visit that began at the given time.
func (p *prober) compare(t *target, theirs *digest, began time.Time, u *update) {
	own := p.view.with(t.name)
	if t.name == p.agent.NodeName || own == nil {
		return
	}
	if theirs == nil || *theirs == *own {
		p.agree(t, u)
		t.view.agrees = theirs != nil
		return
	}
	d := difference{own.sum ^ theirs.sum, theirs.nodes - own.nodes}
	if t.view.agrees = false; t.view.since.IsZero() || t.view.last != d {
		t.view.last, t.view.since = d, began
	}
	if !t.view.followed && p.followed < maxFollowed {
		t.view.followed = true
		p.followed++
	}
	if began.Sub(t.view.since) < viewTimeout {
		return
	}
	t.view.row = &nodeviews.View{Node: t.name, UID: t.uid(), Nodes: theirs.nodes, Own: own.nodes, Difference: d.sum, Since: t.view.since, Asked: began}
	p.differing[t.name] = t
	u.views = append(u.views, t)
}

// agree clears the difference of a node.
func (p *prober) agree(t *target, u *update) {
	if t.view.followed {
		p.followed--
	}
	if t.view.row != nil {
		u.agreed = append(u.agreed, t.view.row)
		delete(p.differing, t.name)
	}
	t.view = comparison{}
}

// uid returns the UID of the node object.
func (t *target) uid() string {
	if len(t.paths) == 0 {
		return ""
	}
	return t.paths[0].UID
}

// suspects determines which agent is probably wrong. This agent is suspect if the largest group of agents that agree with each other and differ from this one
// is larger than this agent's group. If the groups are equally large, the agent that knows fewer nodes is suspect. Rows are written again when their suspect
// changes.
func (p *prober) suspects(u *update) {
	if len(p.differing) == 0 {
		return
	}
	own := 1
	for _, t := range p.targets {
		if t.view.agrees {
			own++
		}
	}
	groups, largest := map[difference]int{}, 0
	for _, t := range p.differing {
		groups[t.view.last]++
		largest = max(largest, groups[t.view.last])
	}
	for _, t := range p.differing {
		row := *t.view.row
		row.Suspect = row.Node
		if largest > own || largest == own && row.Own < row.Nodes {
			row.Suspect = p.agent.NodeName
		}
		if row.Suspect != t.view.row.Suspect {
			t.view.row = &row
			u.views = append(u.views, t)
		}
	}
}

// commitViews writes the rows of differences of one round.
func (p *prober) commitViews(txn statedb.WriteTxn, u update) error {
	for _, row := range u.agreed {
		if _, _, err := p.views.Delete(txn, row); err != nil {
			return fmt.Errorf("delete the view of node %s: %w", row.Node, err)
		}
	}
	written := map[*target]bool{}
	for _, t := range u.views {
		if p.differing[t.name] != t || written[t] {
			continue // it agrees, or was removed in the same round
		}
		written[t] = true
		if _, _, err := p.views.Insert(txn, t.view.row); err != nil {
			return fmt.Errorf("insert the view of node %s: %w", t.name, err)
		}
	}
	return nil
}

package nodehealth

import (
	"fmt"
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/tables/nodeviews"
)

const (
	// viewTimeout is how long a difference between two agents must stay the same until it is reported. A node that joins or leaves is a difference while
	// one agent has heard of it and the other one has not, and the next node is another difference.
	viewTimeout = time.Minute
	// maxFollowed limits the nodes that are probed each viewTimeout because their agents differ. Where all agents differ from this one, few of them tell.
	maxFollowed = 16
	// shownViews limits the differences in a health message.
	shownViews = 3
)

// difference is what two agents do not agree on.
type difference struct {
	sum   uint64 // XOR of the hashes of the nodes that are not the same for both
	nodes int    // nodes that the peer knows more
}

// comparison is what the last answers of a node say about the nodes that its agent knows.
type comparison struct {
	agrees   bool            // the last answer had the digest of this agent
	last     difference      // of the last answer
	since    time.Time       // beginning of the first visit in a row that found it; zero when the last answer did not differ
	followed bool            // the node is probed again after viewTimeout
	row      *nodeviews.View // reported difference; nil without one
}

// compare takes the digest in an answer of a node, nil without one, to a visit that began at a time.
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

// agree drops what is known of a difference.
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

// uid is that of the object of the node.
func (t *target) uid() string {
	if len(t.paths) == 0 {
		return ""
	}
	return t.paths[0].UID
}

// suspects finds out which agents are to be looked at. When the largest group of agents that agree with each other and differ from this one is larger
// than the group of this one, it is this one; without a larger group it is the one of two that knows fewer nodes. Rows are written again when that changes.
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

// commitViews writes the rows of differences of a round.
func (p *prober) commitViews(txn statedb.WriteTxn, u update) error {
	for _, row := range u.agreed {
		if _, _, err := p.views.Delete(txn, row); err != nil {
			return fmt.Errorf("delete the view of node %s: %w", row.Node, err)
		}
	}
	written := map[*target]bool{}
	for _, t := range u.views {
		if p.differing[t.name] != t || written[t] {
			continue // it agrees or was removed in the same round
		}
		written[t] = true
		if _, _, err := p.views.Insert(txn, t.view.row); err != nil {
			return fmt.Errorf("insert the view of node %s: %w", t.name, err)
		}
	}
	return nil
}

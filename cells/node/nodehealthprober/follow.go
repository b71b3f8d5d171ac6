package nodehealthprober

import (
	"slices"
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/clusternodes"
	"github.com/waggle-net/waggle/pkg/tables/nodehealth"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
)

// subscribe follows the nodes. The first round adds all existing nodes.
func (p *prober) subscribe() (err error) {
	txn := p.db.WriteTxn(p.nodes)
	defer txn.Commit()
	p.rows, err = clusternodes.FollowRows(txn, p.nodes)
	return err
}

// follow applies changes of nodes. If this node's own row changes, it applies all nodes, because the row determines which families can be probed. Missing nodes
// are dropped only when the table is complete. Removed nodes count as missing.
func (p *prober) follow(txn statedb.ReadTxn, changed *statedb.WatchSet, complete bool, u *update) {
	rows := map[string]*nodes.Node{}
	p.rows.UpTo(txn, changed, func(before, after *nodes.Node) {
		if after != nil {
			rows[after.Name] = existing(after)
		} else {
			rows[before.Name] = nil
		}
	})
	p.view.update(rows, complete)
	self := p.rows.All()[p.agent.NodeName]
	if self != p.self {
		p.self = self
		for name, row := range p.rows.All() {
			rows[name] = existing(row)
		}
	}
	if complete && !p.complete {
		for name := range p.targets {
			rows[name] = existing(p.rows.All()[name])
		}
	}
	p.complete = complete
	for name, node := range rows {
		t := p.targets[name]
		switch {
		case node == nil && t != nil && complete:
			u.gone = append(u.gone, t.paths...)
			p.agree(t, u)
			delete(p.targets, name)
		case node != nil && t == nil:
			t = &target{name: name, since: time.Now()}
			p.targets[name] = t
			fallthrough
		case node != nil:
			p.replace(txn, t, pathsOf(node, self, p.agent), u)
			p.advance(t.due)
		}
	}
}

// existing returns the row of a node, or nil for a removed node or nil.
func existing(row *nodes.Node) *nodes.Node {
	if row != nil && row.Source == nodes.Removed {
		return nil
	}
	return row
}

// replace sets the paths of a target. Rows of unchanged addresses of the same node keep their verdicts; a target with a new address is visited soon.
func (p *prober) replace(txn statedb.ReadTxn, t *target, rows []*nodehealth.Path, u *update) {
	for _, old := range t.paths {
		if !slices.ContainsFunc(rows, func(p *nodehealth.Path) bool { return p.Kind == old.Kind }) {
			u.gone = append(u.gone, old)
		}
	}
	for i, row := range rows {
		if known := slices.IndexFunc(t.paths, row.Is); known >= 0 {
			rows[i] = t.paths[known]
			continue
		}
		u.put = append(u.put, row)
		t.due = p.soon(txn)
	}
	if len(rows) > 0 && rows[0].UID != t.uid() {
		p.agree(t, u)
		t.since = time.Now()
	}
	t.paths = rows
}

// advance makes the loop look for due targets at the given time at the latest.
func (p *prober) advance(due time.Time) {
	if due.Before(p.earliest) {
		p.earliest = due
	}
}

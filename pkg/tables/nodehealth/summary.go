package nodehealth

import (
	"fmt"
	"iter"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/printable"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
)

// Node is the reachability of one node.
type Node struct {
	Name     string
	Host     State // of its host addresses; empty if none can be probed
	Endpoint State // of its health addresses; empty without one
}

// State returns the combined state of all addresses of the node.
func (n Node) State() State { return Worst(n.Host, n.Endpoint) }

// Nodes groups rows by node. The rows must be in the order of the table.
func Nodes(rows iter.Seq[*Path]) iter.Seq[Node] {
	return func(yield func(Node) bool) {
		var n Node
		for p := range rows {
			if p.Node != n.Name {
				if n.Name != "" && !yield(n) {
					return
				}
				n = Node{Name: p.Node}
			}
			if p.Kind.Endpoint() {
				n.Endpoint = Worst(n.Endpoint, p.State())
			} else {
				n.Host = Worst(n.Host, p.State())
			}
		}
		if n.Name != "" {
			yield(n)
		}
	}
}

// Summary counts nodes.
type Summary struct {
	Nodes, Reachable int
	Unreachable      []string // sorted names
}

// Summarize counts all nodes of the cluster, including this one. A node without an address counts as unknown. Removed nodes do not count.
func Summarize(txn statedb.ReadTxn, all statedb.Table[*nodes.Node], paths statedb.Table[*Path]) Summary {
	s := Summary{Nodes: nodes.CountExisting(txn, all)}
	for n := range Nodes(statedb.ToSeq(paths.All(txn))) {
		if row, _, found := all.Get(txn, nodes.ByName(n.Name)); !found || row.Source == nodes.Removed {
			continue
		}
		switch n.State() {
		case Reachable:
			s.Reachable++
		case Unreachable:
			s.Unreachable = append(s.Unreachable, n.Name)
		}
	}
	return s
}

// shownNodes limits the names in a summary.
const shownNodes = 3

// String returns one line, such as "7/9 reachable, 1 unknown; unreachable: node-3".
func (s Summary) String() string {
	text := fmt.Sprintf("%d/%d reachable", s.Reachable, s.Nodes)
	if unknown := s.Nodes - s.Reachable - len(s.Unreachable); unknown > 0 {
		text += fmt.Sprintf(", %d unknown", unknown)
	}
	if len(s.Unreachable) == 0 {
		return text
	}
	return text + "; unreachable: " + printable.List(s.Unreachable, shownNodes)
}

package nodes

import (
	"net/netip"
	"slices"

	tables "github.com/waggle-net/waggle/pkg/tables/nodes"
)

// seen are the pod ranges that Nodes had since the agent started, by the name of the node: agents can write none of them. Where Nodes decide about ranges, only these
// are believed to be former ranges of a node. The zero value is empty.
type seen struct{ ranges map[string][]netip.Prefix }

// take remembers the ranges of the Node in a row, the last maxNoted of each node.
func (s *seen) take(n *tables.Node) {
	for _, p := range n.CIDRs[:n.FromNode] {
		if s.has(n.Name, p) {
			continue
		}
		if s.ranges == nil {
			s.ranges = map[string][]netip.Prefix{}
		}
		list := append(slices.Clip(s.ranges[n.Name]), p)
		s.ranges[n.Name] = list[max(0, len(list)-maxNoted):]
	}
}

// has reports whether the Node of that name had a range.
func (s *seen) has(node string, p netip.Prefix) bool { return slices.Contains(s.ranges[node], p) }

package clusternodes

import (
	"slices"
	"strings"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// All are the nodes of the cluster, sorted by name.
type All []Node

// Read collects all nodes.
func Read(txn statedb.ReadTxn, nodes statedb.Table[*k8s.Node], ciliumNodes statedb.Table[*cilium.Node]) All {
	all := make(All, 0, nodes.NumObjects(txn))
	for row := range nodes.All(txn) {
		one, _, _ := ciliumNodes.Get(txn, cilium.NodeByName(row.Name))
		all = append(all, newNode(row.Name, row, one))
	}
	for row := range ciliumNodes.All(txn) {
		if _, _, found := nodes.Get(txn, k8s.NodeByName(row.Name)); !found {
			all = append(all, newNode(row.Name, nil, row))
		}
	}
	slices.SortFunc(all, func(a, b Node) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// Index makes one.
func (a All) Index() *Index {
	x := NewIndex()
	for _, n := range a {
		x.Replace(Node{}, n)
	}
	return x
}

// Equal compares everything.
func (a All) Equal(b All) bool { return slices.EqualFunc(a, b, Node.Equal) }

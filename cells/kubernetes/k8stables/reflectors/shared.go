package reflectors

import (
	"slices"
	"strings"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/tables/cilium"
)

// move updates the slices that share a pod after the pod's entry in one slice changed from a to b, and returns the preferred row. If a slice gains a
// pod that has no row in the table, no other slice has the pod. Otherwise move searches the slices of the namespace, which is rare.
func (m *merger) move(w statedb.WriteTxn, name, key string, a, b *cilium.Endpoint) *cilium.Endpoint {
	names, several := m.shared[key]
	switch {
	case a == nil && several:
		names = append(names, name)
	case a == nil:
		if _, found := m.table.Get(w, key); found {
			names = m.holders(key)
		}
	case b == nil:
		names = slices.DeleteFunc(names, func(other string) bool { return other == name })
	}
	if len(names) < 2 {
		delete(m.shared, key)
		if several && len(names) == 1 {
			return m.onOtherNode(m.slices[names[0]].Find(key))
		}
		return b
	}
	m.shared[key] = names
	return m.newest(key, names)
}

// holders returns the names of the slices with an entry for a pod of another node.
func (m *merger) holders(key string) (names []string) {
	namespace, _, _ := strings.Cut(key, "/")
	for name, slice := range m.spaces[namespace] {
		if m.onOtherNode(slice.Find(key)) != nil {
			names = append(names, name)
		}
	}
	return names
}

// newest returns the row of a pod in the slice that was written last.
func (m *merger) newest(key string, names []string) (row *cilium.Endpoint) {
	var last *cilium.EndpointSlice
	for _, name := range names {
		if slice := m.slices[name]; last == nil || slice.Newer(last) {
			last, row = slice, slice.Find(key)
		}
	}
	return row
}

// other returns the row of a pod of another node, whose key a removed pod of this node had; nil if there is none.
func (m *merger) other(txn statedb.ReadTxn, key string) *cilium.Endpoint {
	if m.from == fromEndpoints {
		row, _, found := m.set.Stage.Listed.Get(txn, cilium.EndpointByName(key))
		if !found {
			return nil
		}
		return m.onOtherNode(row)
	}
	names := m.holders(key)
	if len(names) > 1 {
		m.shared[key] = names
	}
	return m.newest(key, names)
}

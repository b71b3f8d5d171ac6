package clusternodes

import (
	"net/netip"
	"slices"

	"github.com/waggle-net/waggle/pkg/tables/nodes"
)

// Index finds nodes by the addresses and pod ranges in their rows of the table nodes, which has resolved conflicting claims. Only [Index.Replace] changes it.
// The zero value is empty.
type Index struct {
	nodes  Names // by address, of any type
	ranges Names // by pod range
}

// Replace removes the row before and adds the row after; either may be nil. No goroutine may query the index meanwhile.
func (x *Index) Replace(before, after *nodes.Node) {
	if before != nil {
		for _, a := range before.Addresses {
			x.nodes.Remove(Whole(a.Addr), before.Name)
		}
		for _, p := range before.CIDRs {
			x.ranges.Remove(p, before.Name)
		}
	}
	if after != nil {
		for _, a := range after.Addresses {
			x.nodes.Add(Whole(a.Addr), after.Name)
		}
		for _, p := range after.CIDRs {
			x.ranges.Add(p, after.Name)
		}
	}
}

// NodesOf returns the names of the nodes that have an address: at most one, unless rows of removed nodes are kept. The caller must not change the list.
func (x *Index) NodesOf(addr netip.Addr) []string { return x.nodes.Of(Whole(addr)) }

// MayHost reports whether a pod with an address may be on a node: the longest pod range that contains the address belongs to the node.
func (x *Index) MayHost(node string, addr netip.Addr) bool {
	return slices.Contains(x.ranges.At(addr), node)
}

// InPodCIDR reports whether a pod range of any node contains an address.
func (x *Index) InPodCIDR(addr netip.Addr) bool { return len(x.ranges.At(addr)) > 0 }

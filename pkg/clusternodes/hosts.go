package clusternodes

import (
	"slices"

	"github.com/waggle-net/waggle/pkg/tables/cilium"
)

// HostOf returns the name of the node of a CiliumEndpoint. With a label, it is the node in the label, which agents of other nodes cannot set, unless another node
// has the node address in the object: while a node changes its address, its objects may name an address that no node has. It need not have a row. Without a
// label, it is the only node with that address. Otherwise it is "".
func (x *Index) HostOf(ep *cilium.Endpoint) string {
	node, host := ep.Node(), ep.Host()
	named := x.NodesOf(node)
	switch {
	case host == "" && len(named) == 1:
		return named[0]
	case !node.IsValid() || len(named) == 0 || slices.Contains(named, host):
		return host
	}
	return ""
}

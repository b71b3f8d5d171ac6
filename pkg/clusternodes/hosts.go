package clusternodes

import (
	"slices"

	"github.com/waggle-net/waggle/pkg/tables/cilium"
)

// HostOf returns the name of the node of a CiliumEndpoint. With a label, it is the node in the label, which agents of other nodes cannot set, if that node has
// the node address in the object or the object has none. Without a label, it is the only node with that address. Otherwise it is "".
func (x *Index) HostOf(ep *cilium.Endpoint) string {
	node, host := ep.Node(), ep.Host()
	named := x.NodesOf(node)
	switch {
	case host == "" && len(named) == 1:
		return named[0]
	case !node.IsValid() || slices.Contains(named, host):
		return host
	}
	return ""
}

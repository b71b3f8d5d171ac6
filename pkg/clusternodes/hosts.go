package clusternodes

import (
	"slices"

	"github.com/waggle-net/waggle/pkg/tables/cilium"
)

// HostOf names the node that a CiliumEndpoint means: the one in its label, which the agents of other nodes cannot write, if that has the address that it gives; without
// the label the one with that address. It returns "" when no node is meant.
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

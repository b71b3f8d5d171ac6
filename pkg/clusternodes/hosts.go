package clusternodes

import (
	"slices"

	"github.com/waggle-net/waggle/pkg/tables/cilium"
)

// HostsOf names the nodes that a CiliumEndpoint may mean: by the address that it gives, and the name of who wrote it when it has one.
func (x *Index) HostsOf(ep *cilium.Endpoint) []string {
	named := x.NodesOf(ep.Node)
	switch {
	case ep.Host == "":
		return named
	case !ep.Node.IsValid() || slices.Contains(named, ep.Host):
		return []string{ep.Host}
	}
	return nil
}

package clusternodes

import (
	"net/netip"
	"slices"

	"github.com/waggle-net/waggle/pkg/tables/cilium"
)

// HostsOf names the nodes that a CiliumEndpoint may mean: by the address that it gives, and the name of who wrote it when it has one.
func (x *Index) HostsOf(ep *cilium.Endpoint) []string {
	node, host := ep.Node(), ep.Host()
	named := x.NodesOf(node)
	switch {
	case host == "":
		return named
	case !node.IsValid() || slices.Contains(named, host):
		return []string{host}
	}
	return nil
}

// HostOf returns the node of a pod with an address: of the nodes that its object may mean, the one that may have such a pod. It reports whether any may. When
// several may, each of which claims the address in the object, none is proven and the name is empty.
func (x *Index) HostOf(ep *cilium.Endpoint, addr netip.Addr) (name string, found bool) {
	for _, host := range x.HostsOf(ep) {
		switch {
		case !x.MayHold(host, addr):
		case found:
			return "", true
		default:
			name, found = host, true
		}
	}
	return name, found
}

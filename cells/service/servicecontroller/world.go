package servicecontroller

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/waggle-net/waggle/pkg/clusternodes"
	"github.com/waggle-net/waggle/pkg/loadbalancer"
)

// world is the data that all services depend on. It is immutable, except for the nodes of the cluster, which change only between two passes.
type world struct {
	*rules
	zone      string            // of this node; empty if unknown
	labels    map[string]string // of this node
	nodePorts []netip.Addr
	own       []netip.Addr // all addresses of this node, sorted
	nodes     *clusternodes.Index
	// apiServers are addresses that no external IP may have.
	apiServers map[loadbalancer.Address]bool
}

// sameAddresses reports whether this node and the API servers have the same addresses in two worlds.
func (w *world) sameAddresses(o *world) bool {
	return slices.Equal(w.nodePorts, o.nodePorts) && slices.Equal(w.own, o.own) && maps.Equal(w.apiServers, o.apiServers)
}

// isOwn reports whether this node has an address.
func (w *world) isOwn(addr netip.Addr) bool {
	_, found := slices.BinarySearchFunc(w.own, addr, netip.Addr.Compare)
	return found
}

// rejectionReason returns the reason why no service may have an external address, or the empty string. With such an address an author of a Service could receive the
// traffic of others. An address of this node is allowed, except for the ports that [world.reserves] names; other kinds of claims have precedence over it.
func (w *world) rejectionReason(addr netip.Addr) string {
	nodes := w.nodes.NodesOf(addr)
	switch {
	case !usable(addr):
		return "is unspecified, loopback, link-local or multicast"
	case !w.isOwn(addr) && len(nodes) > 0:
		return "is an address of node " + strings.Join(nodes, ", ")
	case w.nodes.InPodCIDR(addr):
		return "lies in the pod CIDR of a node"
	}
	for _, p := range w.ranges {
		if p.Contains(addr) {
			return fmt.Sprintf("lies in %s, the range of ClusterIPs", p)
		}
	}
	return ""
}

// usable reports whether an address may belong to a backend or a service. Unspecified, loopback, link-local and multicast addresses may not.
func usable(addr netip.Addr) bool {
	return addr.IsValid() && !addr.IsUnspecified() && !addr.IsLoopback() && !addr.IsMulticast() && !addr.IsLinkLocalUnicast()
}

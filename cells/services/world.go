package services

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/waggle-net/waggle/pkg/clusternodes"
	"github.com/waggle-net/waggle/pkg/loadbalancer"
)

// world is what all services depend on. It never changes but for the nodes of the cluster, which do so between two passes.
type world struct {
	*rules
	zone      string            // of this node, empty when not known
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

// isOwn tells whether an address is this node's.
func (w *world) isOwn(addr netip.Addr) bool {
	_, found := slices.BinarySearchFunc(w.own, addr, netip.Addr.Compare)
	return found
}

// refuses says why no service may have an external address, or nothing. Whoever may write a Service could have the traffic of
// others with it. An address of this node may be a service's, but for the ports that [world.reserves] names; other kinds of claims come before it.
func (w *world) refuses(addr netip.Addr) string {
	nodes := w.nodes.NodesOf(addr)
	switch {
	case !usable(addr):
		return "is no address that others could reach"
	case !w.isOwn(addr) && len(nodes) > 0:
		return "is an address of node " + strings.Join(nodes, ", ")
	case w.nodes.HoldsPods(addr):
		return "lies in the pod CIDR of a node"
	}
	for _, p := range w.ranges {
		if p.Contains(addr) {
			return fmt.Sprintf("lies in %s, the range of ClusterIPs", p)
		}
	}
	return ""
}

// usable tells whether an address may be a backend's or a service's: none of a link, of a machine itself, or of many.
func usable(addr netip.Addr) bool {
	return addr.IsValid() && !addr.IsUnspecified() && !addr.IsLoopback() && !addr.IsMulticast() && !addr.IsLinkLocalUnicast()
}

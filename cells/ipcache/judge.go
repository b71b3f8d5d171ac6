package ipcache

import (
	"net/netip"
	"slices"

	"github.com/waggle-net/waggle/pkg/clusternodes"
	"github.com/waggle-net/waggle/pkg/identity"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/refusedclaims"
)

// judge knows what a CiliumEndpoint may say. Whoever can write one could take over any address otherwise.
type judge struct {
	self  string // name of this node
	nodes *clusternodes.Follower
	local map[netip.Addr]int // how many endpoints of this node have an address
}

// refuses tells why an address is not believed to be a pod's elsewhere; "" when it is. Ours are the objects of this node, whose endpoints are
// known better.
func (j *judge) refuses(ep *cilium.Endpoint, addr netip.Addr) (why refusedclaims.Reason, ours bool) {
	_, here := j.local[addr]
	switch hosts := j.nodes.HostsOf(ep); {
	case slices.Contains(hosts, j.self):
		return "", true
	case !clusternodes.Usable(addr):
		return refusedclaims.Reserved, false
	case here:
		return refusedclaims.LocalAddress, false
	case len(j.nodes.NodesOf(addr)) > 0:
		return refusedclaims.NodeAddress, false
	case len(hosts) == 0:
		return refusedclaims.UnknownNode, false
	}
	if _, found := j.nodes.HostOf(ep, addr); !found {
		return refusedclaims.OutsideCIDRs, false
	}
	return "", false
}

// host returns the node of a pod that is believed; "" when several nodes claim the address by which its object names its node. Packets to such a pod go to the
// node of the range around it.
func (j *judge) host(ep *cilium.Endpoint, addr netip.Addr) string {
	name, _ := j.nodes.HostOf(ep, addr)
	return name
}

// isOfCluster tells whether a number may stand for a pod of another node.
func isOfCluster(id uint32) bool { return id >= identity.ClusterMin && id <= identity.ClusterMax }

package ipcache

import (
	"net/netip"

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
	switch host := j.nodes.HostOf(ep); {
	case host == j.self:
		return "", true
	case !clusternodes.Usable(addr):
		return refusedclaims.Reserved, false
	case here:
		return refusedclaims.LocalAddress, false
	case len(j.nodes.NodesOf(addr)) > 0:
		return refusedclaims.NodeAddress, false
	case host == "":
		return refusedclaims.UnknownNode, false
	case !j.nodes.MayHold(host, addr):
		return refusedclaims.OutsideCIDRs, false
	}
	return "", false
}

// isOfCluster tells whether a number may stand for a pod of another node.
func isOfCluster(id uint32) bool { return id >= identity.ClusterMin && id <= identity.ClusterMax }

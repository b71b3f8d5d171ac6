package ipcachemaps

import (
	"net/netip"

	"github.com/waggle-net/waggle/pkg/clusternodes"
	"github.com/waggle-net/waggle/pkg/identity"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/refusedclaims"
)

// claimChecker decides which claims of CiliumEndpoints are plausible. Without it, any writer of CiliumEndpoints could take over any address.
type claimChecker struct {
	self  string // this node
	nodes *clusternodes.Follower
	local map[netip.Addr]int // number of endpoints of this node by address
}

// checkClaim returns the reason why an object's claim of an address is rejected, "" if it is accepted. Ours reports whether the object belongs to this node: the
// table endpoints takes precedence for its address.
func (j *claimChecker) checkClaim(ep *cilium.Endpoint, addr netip.Addr) (why refusedclaims.Reason, ours bool) {
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
	case !j.nodes.MayHost(host, addr):
		return refusedclaims.OutsideCIDRs, false
	}
	return "", false
}

// isOfCluster reports whether an identity number is in the range of the cluster's pods.
func isOfCluster(id uint32) bool { return id >= identity.ClusterMin && id <= identity.ClusterMax }

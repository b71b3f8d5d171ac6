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
	nodes *clusternodes.Index
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
	case !slices.ContainsFunc(hosts, func(name string) bool { return j.nodes.MayHold(name, addr) }):
		return refusedclaims.OutsideCIDRs, false
	}
	return "", false
}

// host returns the node of a pod that is believed: of several, which name each other's address as theirs, the first by name.
func (j *judge) host(ep *cilium.Endpoint, addr netip.Addr) string {
	for _, name := range j.nodes.HostsOf(ep) {
		if j.nodes.MayHold(name, addr) {
			return name
		}
	}
	return ""
}

// isOfCluster tells whether a number may stand for a pod of another node.
func isOfCluster(id uint32) bool { return id >= identity.ClusterMin && id <= identity.ClusterMax }

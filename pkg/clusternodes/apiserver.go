package clusternodes

import (
	"net/netip"
	"slices"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// apiServerSlice is the one object that API servers write their addresses to, and put right every few seconds. Others could
// call a slice of theirs a part of the same service.
const apiServerSlice = "default/kubernetes"

// APIServers are the addresses of the API server, sorted, on nodes and elsewhere. The channel closes when they may be others.
func APIServers(txn statedb.ReadTxn, all statedb.Table[*k8s.EndpointSlice]) ([]netip.Addr, <-chan struct{}) {
	slice, _, changed, found := all.GetWatch(txn, k8s.EndpointSliceByName(apiServerSlice))
	if !found {
		return nil, changed
	}
	var addrs []netip.Addr
	for _, e := range slice.Endpoints {
		addrs = append(addrs, e.Addrs...)
	}
	addrs = slices.DeleteFunc(addrs, func(a netip.Addr) bool { return !Usable(a) })
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs), changed
}

package clusternodes

import (
	"net/netip"
	"slices"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// APIServers returns the sorted addresses of the API server, on nodes and outside the cluster. The channel closes when they may have changed.
func APIServers(txn statedb.ReadTxn, all statedb.Table[*k8s.EndpointSlice]) ([]netip.Addr, <-chan struct{}) {
	slice, _, changed, found := all.GetWatch(txn, k8s.APIServerSlice)
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

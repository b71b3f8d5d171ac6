package ipcachemaps

import (
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/pkg/datapath/mapreconciler"
	"github.com/waggle-net/waggle/pkg/tables/ipcache"
)

// newReconciler registers the reconciler that writes rows to the maps.
func newReconciler(
	params reconciler.Params, table statedb.RWTable[*ipcache.Entry], ops *ops,
) (reconciler.Reconciler[*ipcache.Entry], error) {
	return mapreconciler.Register(params, "ipcache", table, ops, ops)
}

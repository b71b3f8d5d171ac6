package apiservers

import "github.com/cilium/statedb"

// Away reports whether no API server is reachable. Callers then do not wait for data that only a server has. It returns false for a nil or empty table
// (no Kubernetes).
func Away(txn statedb.ReadTxn, table statedb.Table[Server]) bool {
	if table == nil {
		return false
	}
	away := false
	for s := range table.All(txn) {
		if s.Reachable != No {
			return false
		}
		away = true
	}
	return away
}

package apiservers

import "github.com/cilium/statedb"

// AllUnreachable reports whether no API server is reachable. Callers then do not wait for data that only a server has. It returns false for a nil or empty table
// (no Kubernetes).
func AllUnreachable(txn statedb.ReadTxn, table statedb.Table[Server]) bool {
	if table == nil {
		return false
	}
	unreachable := false
	for s := range table.All(txn) {
		if s.Reachable != No {
			return false
		}
		unreachable = true
	}
	return unreachable
}

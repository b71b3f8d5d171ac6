package apiservers

import "github.com/cilium/statedb"

// Away tells whether it is known that no API server answers. Nobody need wait then for what only it can say. A table that
// is nil or empty, as without Kubernetes, knows nothing.
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

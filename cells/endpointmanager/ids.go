package endpointmanager

import (
	"fmt"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/endpoint"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/endpointstates"
)

// maxID is the last local id; the map endpoint_facts has a slot for each and slot 0 is nobody's.
const maxID = 4095

// nextID finds a free id behind the one that was given last, so that one that has just become free comes last. An id
// whose former endpoint still has a state is not free: something of it may be in the kernel. Call it with mu held.
func (m *manager) nextID(txn statedb.ReadTxn) (uint16, error) {
	id := m.lastID
	for range maxID {
		id++
		if id > maxID {
			id = 1
		}
		_, _, wanted := m.endpoints.Get(txn, endpoints.ByID(id))
		_, _, lingers := m.states.Get(txn, endpointstates.ByID(id))
		if !wanted && !lingers {
			m.lastID = id
			return id, nil
		}
	}
	return 0, fmt.Errorf("all %d ids are in use or still being cleaned up: %w", maxID, endpoint.ErrFull)
}

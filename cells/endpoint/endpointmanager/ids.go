package endpointmanager

import (
	"fmt"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/endpoint"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/endpointstates"
)

// maxID is the largest local id. The map endpoint_facts has one slot for each id; slot 0 belongs to no endpoint.
const maxID = 4095

// nextID returns the next free id after the last assigned one, so that a freed id is reused as late as possible. An id whose state row still exists is not
// free, because the kernel may still have objects of its former endpoint. The caller must hold mu.
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

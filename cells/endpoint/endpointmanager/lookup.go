package endpointmanager

import (
	"fmt"
	"iter"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/endpoint"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
)

// Lookup implements [endpoint.Manager].
func (m *manager) Lookup(id string) (*endpoints.Endpoint, error) {
	ref, err := endpoint.ParseRef(id)
	if err != nil {
		return nil, err
	}
	ep := m.find(m.db.ReadTxn(), ref)
	if ep == nil {
		return nil, fmt.Errorf("endpoint id %q: %w", id, endpoint.ErrNotFound)
	}
	return ep, nil
}

func (m *manager) find(txn statedb.ReadTxn, ref endpoint.Ref) *endpoints.Endpoint {
	switch ref.Kind {
	case endpoint.RefID:
		return newest(m.endpoints.List(txn, endpoints.ByID(ref.ID)))
	case endpoint.RefAttachment:
		return newest(m.endpoints.List(txn, endpoints.ByAttachment(ref.Name)))
	case endpoint.RefContainer:
		return newest(m.endpoints.List(txn, endpoints.ByContainer(ref.Name)))
	case endpoint.RefPod:
		return newest(m.endpoints.List(txn, endpoints.ByPod(ref.Name)))
	case endpoint.RefAddress:
		return newest(m.endpoints.List(txn, endpoints.ByAddress(ref.Addr)))
	}
	return nil
}

// newest returns the newest of several endpoints: the old and the new sandbox of a pod may overlap.
func newest(rows iter.Seq2[*endpoints.Endpoint, statedb.Revision]) (found *endpoints.Endpoint) {
	for ep := range rows {
		if found == nil || endpoints.CompareAge(ep, found) > 0 {
			found = ep
		}
	}
	return found
}

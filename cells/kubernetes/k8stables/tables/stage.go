package tables

import (
	"errors"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/tables/cilium"
)

// Stage holds the inputs of cilium-endpoints while CiliumEndpointSlices are read; otherwise they are empty. Other cells do not read these tables, and
// the copy on disk does not contain them. The table sources has the state of each.
type Stage struct {
	Own    statedb.RWTable[*cilium.Endpoint]      // CiliumEndpoints with the label of this node
	Listed statedb.RWTable[*cilium.Endpoint]      // all CiliumEndpoints, while slices are not complete
	Slices statedb.RWTable[*cilium.EndpointSlice] // CiliumEndpointSlices of the cluster role
}

// NewStage creates the tables.
func NewStage(db *statedb.DB) (*Stage, error) {
	own, errOwn := cilium.NewOwnEndpointTable(db)
	listed, errListed := cilium.NewListedEndpointTable(db)
	slices, errSlices := cilium.NewEndpointSliceTable(db)
	return &Stage{own, listed, slices}, errors.Join(errOwn, errListed, errSlices)
}

func (s *Stage) tables() []Table {
	uid := func(r *cilium.Endpoint) string { return r.UID() }
	return []Table{
		newTable(s.Own, cilium.EndpointByName, uid), newTable(s.Listed, cilium.EndpointByName, uid),
		newTable(s.Slices, cilium.EndpointSliceByName, func(r *cilium.EndpointSlice) string { return r.UID }),
	}
}

func (s *Stage) names() []string { return []string{s.Own.Name(), s.Listed.Name(), s.Slices.Name()} }

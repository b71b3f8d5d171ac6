package servicecontroller

import (
	"github.com/waggle-net/waggle/pkg/bpfmaps"
	"github.com/waggle-net/waggle/pkg/loadbalancer"
	"github.com/waggle-net/waggle/pkg/servicemaps"
)

// previousIDs reads the ids of the previous run from the maps.
type previousIDs interface {
	// IDs returns the ids of frontends and backends, by address.
	IDs() (frontends, backends map[loadbalancer.Address]uint32, err error)
}

func newPreviousIDs(m bpfmaps.Batches) previousIDs { return servicemaps.New(m) }

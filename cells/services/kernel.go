package services

import (
	"github.com/waggle-net/waggle/pkg/bpfmaps"
	"github.com/waggle-net/waggle/pkg/loadbalancer"
	"github.com/waggle-net/waggle/pkg/servicemaps"
)

// earlierIDs reads the ids of the previous run from the maps.
type earlierIDs interface {
	// IDs returns the ids of frontends and backends, by address.
	IDs() (frontends, backends map[loadbalancer.Address]uint32, err error)
}

func newEarlierIDs(m bpfmaps.Batches) earlierIDs { return servicemaps.New(m) }

package services

import (
	"github.com/waggle-net/waggle/pkg/bpfmaps"
	"github.com/waggle-net/waggle/pkg/loadbalancer"
	"github.com/waggle-net/waggle/pkg/servicemaps"
)

// earlierIDs tells what the run before has left in the maps.
type earlierIDs interface {
	// IDs are the ids of frontends and of backends.
	IDs() (frontends, backends map[loadbalancer.Address]uint32, err error)
}

func newEarlierIDs(m bpfmaps.Batches) earlierIDs { return servicemaps.New(m) }

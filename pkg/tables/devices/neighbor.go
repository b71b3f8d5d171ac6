package devices

import (
	"net/netip"
	"strconv"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/indexes"
	"github.com/waggle-net/waggle/pkg/mac"
)

// Neighbor is one entry of the kernel's neighbour tables, as last reported.
type Neighbor struct {
	LinkIndex int        `json:"linkIndex"`
	Addr      netip.Addr `json:"addr"`
	MAC       mac.Addr   `json:"mac"`   // zero while unknown
	State     uint16     `json:"state"` // NUD_*: 2 reachable, 4 stale, 32 failed, 128 permanent
	Flags     uint8      `json:"flags"` // NTF_*
}

// TableHeader implements statedb.TableWritable.
func (Neighbor) TableHeader() []string { return []string{"Address", "LinkIndex", "MAC", "State"} }

// TableRow implements statedb.TableWritable.
func (n Neighbor) TableRow() []string {
	return []string{n.Addr.String(), strconv.Itoa(n.LinkIndex), n.MAC.String(), strconv.Itoa(int(n.State))}
}

var neighborIndex = indexes.Unique("id", indexes.String, func(n Neighbor) string { return n.Addr.String() + "@" + strconv.Itoa(n.LinkIndex) })
var neighborLinkIndex = indexes.Shared("link", indexes.Int, func(n Neighbor) int { return n.LinkIndex })

// Queries of neighbours. NeighborByID takes "<address>@<ifindex>".
var (
	NeighborByID   = neighborIndex.Query
	NeighborByLink = neighborLinkIndex.Query
)

// NewNeighborTable makes the table "neighbors".
func NewNeighborTable(db *statedb.DB) (statedb.RWTable[Neighbor], error) {
	return statedb.NewTable(db, "neighbors", neighborIndex, neighborLinkIndex)
}

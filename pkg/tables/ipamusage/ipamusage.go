// Package ipamusage holds one row for each address family that pods can have: how large its range is, how full, and
// what happened to its addresses since the agent started.
package ipamusage

import (
	"net/netip"
	"strconv"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
)

// Usage is one row. Counts of addresses are of the range that is chosen now; events are counted since the agent
// started and never fall.
type Usage struct {
	Family      string       `json:"family"`      // "ipv4" or "ipv6"
	Range       netip.Prefix `json:"range"`       // the chosen pod CIDR
	Capacity    string       `json:"capacity"`    // addresses less network and broadcast, in decimal: a range may hold more than 2^64
	Used        int          `json:"used"`        // by endpoints, by the node, and allocated but not claimed yet
	Quarantined int          `json:"quarantined"` // released a short time ago
	Excluded    int          `json:"excluded"`    // never given
	Outside     int          `json:"outside"`     // still used, of a range that was chosen earlier
	Events
}

// Events are totals.
type Events struct {
	Allocations uint64 `json:"allocations"` // addresses handed out
	Releases    uint64 `json:"releases"`    // addresses given back
	Expirations uint64 `json:"expirations"` // allocations that nobody claimed in time
	EarlyReuses uint64 `json:"earlyReuses"` // quarantines that were cut short because nothing else was free
}

// TableHeader implements statedb.TableWritable.
func (Usage) TableHeader() []string {
	return []string{"Family", "Range", "Capacity", "Used", "Quarantined", "Excluded", "Outside", "Allocations", "Releases",
		"Expirations", "EarlyReuses"}
}

// TableRow implements statedb.TableWritable.
func (u Usage) TableRow() []string {
	row := []string{u.Family, u.Range.String(), u.Capacity}
	for _, n := range []int{u.Used, u.Quarantined, u.Excluded, u.Outside} {
		row = append(row, strconv.Itoa(n))
	}
	for _, n := range []uint64{u.Allocations, u.Releases, u.Expirations, u.EarlyReuses} {
		row = append(row, strconv.FormatUint(n, 10))
	}
	return row
}

var familyIndex = statedb.Index[Usage, string]{
	Name:       "family",
	FromObject: func(u Usage) index.KeySet { return index.NewKeySet(index.String(u.Family)) },
	FromKey:    index.String,
	FromString: index.FromString,
	Unique:     true,
}

// ByFamily finds the row of "ipv4" or "ipv6".
var ByFamily = familyIndex.Query

// NewTable makes the table "ipam-usage".
func NewTable(db *statedb.DB) (statedb.RWTable[Usage], error) {
	return statedb.NewTable(db, "ipam-usage", familyIndex)
}

// Package ipamusage holds one row for each address family of pods: the size of its range, the usage, and address events since the agent started.
package ipamusage

import (
	"net/netip"
	"strconv"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/indexes"
)

// Usage is the usage of one family. Counts of addresses refer to the currently chosen range. Event counters start with the agent and never fall.
type Usage struct {
	Family      string       `json:"family"`      // "ipv4" or "ipv6"
	Range       netip.Prefix `json:"range"`       // the chosen pod CIDR
	Capacity    string       `json:"capacity"`    // addresses without network and broadcast, in decimal: a range may hold more than 2^64
	Used        int          `json:"used"`        // by endpoints and the node, and allocated addresses that are not claimed yet
	Quarantined int          `json:"quarantined"` // recently released
	Excluded    int          `json:"excluded"`    // never handed out
	Outside     int          `json:"outside"`     // still used, from a range that was chosen before
	Events
}

// Events are totals.
type Events struct {
	Allocations uint64 `json:"allocations"` // addresses handed out
	Releases    uint64 `json:"releases"`    // released addresses
	Expirations uint64 `json:"expirations"` // allocations that expired without a claim
	EarlyReuses uint64 `json:"earlyReuses"` // quarantines cut short because no other address was free
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

var familyIndex = indexes.Unique("family", indexes.String, func(u Usage) string { return u.Family })

// ByFamily finds the row of "ipv4" or "ipv6".
var ByFamily = familyIndex.Query

// NewTable makes the table "ipam-usage".
func NewTable(db *statedb.DB) (statedb.RWTable[Usage], error) {
	return statedb.NewTable(db, "ipam-usage", familyIndex)
}

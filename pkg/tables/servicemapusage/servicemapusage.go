// Package servicemapusage holds the usage of the service maps, and the failures for lack of capacity.
package servicemapusage

import (
	"strconv"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/indexes"
)

// Usage is the usage of one map. Counters start with the agent.
type Usage struct {
	Map        string `json:"map"`        // name in the programs
	Entries    uint32 `json:"entries"`    // in use; of an array: allocated elements, including quarantined ones
	MaxEntries uint32 `json:"maxEntries"` // capacity
	// Refused counts the entries, runs of slots and Maglev tables that did not fit into the map or the quota of a namespace, including each repeated
	// attempt. The statuses of frontends show the current failures.
	Refused uint64 `json:"refused"`
}

// TableHeader implements statedb.TableWritable.
func (Usage) TableHeader() []string { return []string{"Map", "Entries", "MaxEntries", "Refused"} }

// TableRow implements statedb.TableWritable.
func (u Usage) TableRow() []string {
	return []string{u.Map, strconv.FormatUint(uint64(u.Entries), 10), strconv.FormatUint(uint64(u.MaxEntries), 10),
		strconv.FormatUint(u.Refused, 10)}
}

var mapIndex = indexes.Unique("map", indexes.String, func(u Usage) string { return u.Map })

// NewTable makes the table "service-map-usage". It has no initializer, because no reader needs complete rows.
func NewTable(db *statedb.DB) (statedb.RWTable[Usage], error) {
	return statedb.NewTable(db, "service-map-usage", mapIndex)
}

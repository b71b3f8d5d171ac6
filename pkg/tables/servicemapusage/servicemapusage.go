// Package servicemapusage holds how full the maps of services are, and how often one was too small.
package servicemapusage

import (
	"strconv"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
)

// Usage is one map. Counters begin with the agent.
type Usage struct {
	Map        string `json:"map"`        // as the programs call it
	Entries    uint32 `json:"entries"`    // in use; of an array the elements that are somebody's, those in quarantine included
	MaxEntries uint32 `json:"maxEntries"` // what it has room for
	// Refused counts entries, runs of slots and tables that found no room, each attempt again as well. What is refused now is said by
	// the statuses of frontends.
	Refused uint64 `json:"refused"`
}

// TableHeader implements statedb.TableWritable.
func (Usage) TableHeader() []string { return []string{"Map", "Entries", "MaxEntries", "Refused"} }

// TableRow implements statedb.TableWritable.
func (u Usage) TableRow() []string {
	return []string{u.Map, strconv.FormatUint(uint64(u.Entries), 10), strconv.FormatUint(uint64(u.MaxEntries), 10),
		strconv.FormatUint(u.Refused, 10)}
}

var mapIndex = statedb.Index[Usage, string]{
	Name:       "map",
	FromObject: func(u Usage) index.KeySet { return index.NewKeySet(index.String(u.Map)) },
	FromKey:    index.String,
	FromString: index.FromString,
	Unique:     true,
}

// ByMap finds the row of a map.
var ByMap = mapIndex.Query

// NewTable makes the table "service-map-usage". Whether its rows are complete matters to nobody, so nothing initializes it.
func NewTable(db *statedb.DB) (statedb.RWTable[Usage], error) {
	return statedb.NewTable(db, "service-map-usage", mapIndex)
}

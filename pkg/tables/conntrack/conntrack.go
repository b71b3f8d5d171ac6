// Package conntrack holds what the collector of flows has found in each map of flows, of translated flows and of clients that
// keep their backend, and when it looked.
package conntrack

import (
	"strconv"
	"time"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
)

// Map is one map. Counters begin with the agent.
type Map struct {
	Name       string `json:"name"` // of the BPF map
	Entries    uint64 `json:"entries"`
	MaxEntries uint32 `json:"maxEntries"`

	Expired  uint64 `json:"expired"`  // deleted because their time was over
	Orphaned uint64 `json:"orphaned"` // deleted because their endpoint is gone
	Unserved uint64 `json:"unserved"` // deleted because their service is gone, or its backend
	Flushed  uint64 `json:"flushed"`  // deleted by an operator
	Full     uint64 `json:"full"`     // times that programs said there was no room, or no port for a translation; there may be more refused flows than that
	Share    uint64 `json:"share"`    // times that they said an endpoint had used up its share

	// Began is when the last pass over all maps began that knew which endpoints there are; zero before the first.
	Began time.Time     `json:"began,omitzero"`
	Took  time.Duration `json:"took"` // that pass over this map, with its pauses
}

// TableHeader implements statedb.TableWritable.
func (Map) TableHeader() []string {
	return []string{"Map", "Entries", "MaxEntries", "Expired", "Orphaned", "Unserved", "Flushed", "Full", "Share", "Began"}
}

// TableRow implements statedb.TableWritable.
func (m Map) TableRow() []string {
	n := func(v uint64) string { return strconv.FormatUint(v, 10) }
	began := "-"
	if !m.Began.IsZero() {
		began = m.Began.UTC().Format(time.RFC3339)
	}
	return []string{m.Name, n(m.Entries), n(uint64(m.MaxEntries)), n(m.Expired), n(m.Orphaned), n(m.Unserved), n(m.Flushed), n(m.Full),
		n(m.Share), began}
}

var nameIndex = statedb.Index[Map, string]{
	Name:       "name",
	FromObject: func(m Map) index.KeySet { return index.NewKeySet(index.String(m.Name)) },
	FromKey:    index.String,
	FromString: index.FromString,
	Unique:     true,
}

// ByName finds the row of a map.
var ByName = nameIndex.Query

// NewTable makes the table "conntrack".
func NewTable(db *statedb.DB) (statedb.RWTable[Map], error) {
	return statedb.NewTable(db, "conntrack", nameIndex)
}

// PassedSince tells whether all maps were looked through in a pass that began after a moment of this process. Then no flow
// is left of an endpoint that was gone at that moment.
func PassedSince(txn statedb.ReadTxn, table statedb.Table[Map], moment time.Time) bool {
	for _, name := range FlowMaps() {
		row, _, found := table.Get(txn, ByName(name))
		if !found || !row.Began.After(moment) {
			return false
		}
	}
	return true
}

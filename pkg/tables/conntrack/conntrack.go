// Package conntrack holds the results of the flow collector for each map of flows, of translated flows and of client affinity, with the time of its
// last pass.
package conntrack

import (
	"strconv"
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/indexes"
)

// Map is one BPF map. Counters start with the agent.
type Map struct {
	Name       string `json:"name"` // of the BPF map
	Entries    uint64 `json:"entries"`
	MaxEntries uint32 `json:"maxEntries"`

	Expired  uint64 `json:"expired"`  // deleted because they expired
	Orphaned uint64 `json:"orphaned"` // deleted because their endpoint was removed
	Unserved uint64 `json:"unserved"` // deleted because their service or backend was removed
	Flushed  uint64 `json:"flushed"`  // deleted by an operator
	Full     uint64 `json:"full"`     // signals that the map was full or no port was free for a translation; more flows may have been dropped than that
	Share    uint64 `json:"share"`    // signals that an endpoint had used up its quota

	// Began is the start of the last pass over all maps that knew all endpoints; zero before the first such pass.
	Began time.Time     `json:"began,omitzero"`
	Took  time.Duration `json:"took"` // duration of that pass over this map, including pauses
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

var nameIndex = indexes.Unique("name", indexes.String, func(m Map) string { return m.Name })

// ByName finds the row of a map.
var ByName = nameIndex.Query

// NewTable makes the table "conntrack".
func NewTable(db *statedb.DB) (statedb.RWTable[Map], error) {
	return statedb.NewTable(db, "conntrack", nameIndex)
}

// PassedSince reports whether the collector has scanned all flow maps in a pass that began after a time of this process. Then no flow is left of an
// endpoint that was removed before that time.
func PassedSince(txn statedb.ReadTxn, table statedb.Table[Map], moment time.Time) bool {
	for _, name := range FlowMaps() {
		row, _, found := table.Get(txn, ByName(name))
		if !found || !row.Began.After(moment) {
			return false
		}
	}
	return true
}

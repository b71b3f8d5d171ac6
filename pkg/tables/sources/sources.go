// Package sources holds, for each table that is filled from outside the agent, whether its rows are usable. This differs from statedb's Initialized,
// which only permits pruning.
package sources

import (
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/column"
	"github.com/waggle-net/waggle/pkg/indexes"
)

// State of a source.
type State string

const (
	Waiting  State = "waiting"  // nothing has been read yet
	Snapshot State = "snapshot" // the rows are the last known good copy, or an incomplete list
	Synced   State = "synced"   // the rows are the complete list of the source
)

// Source is the producer of a table and its progress.
type Source struct {
	Table      string    `json:"table"`                // name of the table that is filled
	Producer   string    `json:"producer"`             // "manifests", "reflectors" or [CopyOnDisk]
	State      State     `json:"state"`                // see the constants
	Since      time.Time `json:"since"`                // when State was entered
	WaitingFor string    `json:"waitingFor,omitempty"` // the missing condition; empty when Synced
	Copy       time.Time `json:"copy,omitzero"`        // time at which the copy on disk was written; zero without one
	Optional   bool      `json:"optional,omitempty"`   // the node works without the rows: only their readers wait
}

// FirstList is the initial value of WaitingFor of a table of the API server. After a failure the error follows it.
const FirstList = "the first list of the API server"

// CopyOnDisk is the producer of rows of the copy on disk.
const CopyOnDisk = "snapshot"

// Copied reports whether the rows are those of the copy on disk.
func (s Source) Copied() bool { return s.State == Snapshot && s.Producer == CopyOnDisk }

// Usable reports whether derived tables and ADD may rely on the rows.
func (s Source) Usable() bool { return s.State == Snapshot || s.State == Synced }

// Delays reports whether the node has to wait for the rows.
func (s Source) Delays() bool { return !s.Optional && !s.Usable() }

// TableHeader implements statedb.TableWritable.
func (Source) TableHeader() []string {
	return []string{"Table", "Producer", "State", "Since", "Copy", "WaitingFor"}
}

// TableRow implements statedb.TableWritable.
func (s Source) TableRow() []string {
	return []string{s.Table, s.Producer, string(s.State), column.Time(s.Since), column.Time(s.Copy), s.WaitingFor}
}

var tableIndex = indexes.Unique("table", indexes.String, func(s Source) string { return s.Table })

// ByTable finds the source of one table.
var ByTable = tableIndex.Query

// NewTable makes the table "sources".
func NewTable(db *statedb.DB) (statedb.RWTable[Source], error) {
	return statedb.NewTable(db, "sources", tableIndex)
}

// Listed reports whether the rows of all named tables are complete lists of their sources, neither unread nor from the copy on disk.
func Listed(txn statedb.ReadTxn, table statedb.Table[Source], names ...string) bool {
	for _, name := range names {
		if row, _, _ := table.Get(txn, ByTable(name)); row.State != Synced {
			return false
		}
	}
	return true
}

// Package sources says, for each table that is filled from outside the agent, whether its rows may be used already.
// That is another fact than statedb's Initialized, which only permits pruning.
package sources

import (
	"time"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
)

// State of a source.
type State string

const (
	Waiting  State = "waiting"  // nothing was read yet
	Snapshot State = "snapshot" // the rows are the last known good copy, or a reading that may lack something
	Synced   State = "synced"   // the rows are the source's own, complete list
)

// Source is one row: who fills a table and how far it has come.
type Source struct {
	Table      string    `json:"table"`                // name of the table that is filled
	Producer   string    `json:"producer"`             // "manifests", "reflectors" or "snapshot"
	State      State     `json:"state"`                // see the constants
	Since      time.Time `json:"since"`                // when State was entered
	WaitingFor string    `json:"waitingFor,omitempty"` // what is missing, in words; empty when Synced
	Copy       time.Time `json:"copy,omitzero"`        // when the copy on disk was written; zero when there is none
	Optional   bool      `json:"optional,omitempty"`   // the node can do without the rows: who needs them waits alone
}

// Usable tells whether derived tables and ADD may rely on the rows.
func (s Source) Usable() bool { return s.State == Snapshot || s.State == Synced }

// Delays tells whether the node has to wait for the rows.
func (s Source) Delays() bool { return !s.Optional && !s.Usable() }

// TableHeader implements statedb.TableWritable.
func (Source) TableHeader() []string {
	return []string{"Table", "Producer", "State", "Since", "Copy", "WaitingFor"}
}

// TableRow implements statedb.TableWritable.
func (s Source) TableRow() []string {
	return []string{s.Table, s.Producer, string(s.State), clock(s.Since), clock(s.Copy), s.WaitingFor}
}

// clock writes a time; "-" when there is none.
func clock(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format(time.RFC3339)
}

var tableIndex = statedb.Index[Source, string]{
	Name:       "table",
	FromObject: func(s Source) index.KeySet { return index.NewKeySet(index.String(s.Table)) },
	FromKey:    index.String,
	FromString: index.FromString,
	Unique:     true,
}

// ByTable finds the source of one table.
var ByTable = tableIndex.Query

// NewTable makes the table "sources".
func NewTable(db *statedb.DB) (statedb.RWTable[Source], error) {
	return statedb.NewTable(db, "sources", tableIndex)
}

// Listed tells whether the rows of all these tables, by their names, are their sources' own lists: nothing is unread, and nothing a
// copy of before.
func Listed(txn statedb.ReadTxn, table statedb.Table[Source], names ...string) bool {
	for _, name := range names {
		if row, _, _ := table.Get(txn, ByTable(name)); row.State != Synced {
			return false
		}
	}
	return true
}

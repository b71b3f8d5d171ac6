// Package collectedendpoints counts the endpoints that were removed because their pods had ended and nobody said so.
package collectedendpoints

import (
	"strconv"
	"time"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"

	"github.com/waggle-net/waggle/pkg/printable"
)

// Collected is one row: what was removed by one set of proofs since the agent started.
type Collected struct {
	Proofs string    `json:"proofs"` // "link,namespace", "link,pod" or "link,namespace,pod"
	Count  uint64    `json:"count"`
	Last   string    `json:"last"` // the last one: its attachment, and its pod if it had one
	Time   time.Time `json:"time"` // when that was
}

// TableHeader implements statedb.TableWritable.
func (Collected) TableHeader() []string { return []string{"Proofs", "Count", "Last", "Time"} }

// TableRow implements statedb.TableWritable.
func (c Collected) TableRow() []string {
	return []string{c.Proofs, strconv.FormatUint(c.Count, 10), printable.Text(c.Last), c.Time.UTC().Format(time.RFC3339)}
}

var proofsIndex = statedb.Index[Collected, string]{
	Name:       "proofs",
	FromObject: func(c Collected) index.KeySet { return index.NewKeySet(index.String(c.Proofs)) },
	FromKey:    index.String,
	FromString: index.FromString,
	Unique:     true,
}

// ByProofs finds the row of one set of proofs.
var ByProofs = proofsIndex.Query

// NewTable makes the table "collected-endpoints". It is complete from birth: nothing is removed because of it.
func NewTable(db *statedb.DB) (statedb.RWTable[Collected], error) {
	return statedb.NewTable(db, "collected-endpoints", proofsIndex)
}

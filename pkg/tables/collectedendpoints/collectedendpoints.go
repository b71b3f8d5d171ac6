// Package collectedendpoints counts the endpoints that the agent removed because their pods had ended without a DEL.
package collectedendpoints

import (
	"strconv"
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/indexes"
	"github.com/waggle-net/waggle/pkg/printable"
)

// Collected counts the endpoints removed by one set of evidence since the agent started.
type Collected struct {
	Proofs string    `json:"proofs"` // "link,namespace", "link,pod" or "link,namespace,pod"
	Count  uint64    `json:"count"`
	Last   string    `json:"last"` // the last removed endpoint: its attachment, and its pod if it had one
	Time   time.Time `json:"time"` // time of the last removal
}

// TableHeader implements statedb.TableWritable.
func (Collected) TableHeader() []string { return []string{"Proofs", "Count", "Last", "Time"} }

// TableRow implements statedb.TableWritable.
func (c Collected) TableRow() []string {
	return []string{c.Proofs, strconv.FormatUint(c.Count, 10), printable.Text(c.Last), c.Time.UTC().Format(time.RFC3339)}
}

var proofsIndex = indexes.Unique("proofs", indexes.String, func(c Collected) string { return c.Proofs })

// ByProofs finds the row of one set of evidence.
var ByProofs = proofsIndex.Query

// NewTable makes the table "collected-endpoints". It has no initializer, because no rows are pruned because of it.
func NewTable(db *statedb.DB) (statedb.RWTable[Collected], error) {
	return statedb.NewTable(db, "collected-endpoints", proofsIndex)
}

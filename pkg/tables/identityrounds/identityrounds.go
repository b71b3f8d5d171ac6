// Package identityrounds holds the result of the last round of the garbage collection of CiliumIdentities.
package identityrounds

import (
	"strconv"
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/indexes"
)

// Round is a round of the leading replica. There is at most one row; a replica that does not lead has none.
type Round struct {
	Ended   time.Time `json:"ended"`
	All     int       `json:"all"`     // CiliumIdentities created by agents of Waggle, at the start of the round
	Unused  int       `json:"unused"`  // part of All to which no CiliumEndpoint refers
	Deleted int       `json:"deleted"` // part of Unused that was deleted
	Overdue int       `json:"overdue"` // unused long enough to be deleted, but not deleted in the round
}

// TableHeader implements statedb.TableWritable.
func (Round) TableHeader() []string { return []string{"Ended", "All", "Unused", "Deleted", "Overdue"} }

// TableRow implements statedb.TableWritable.
func (r Round) TableRow() []string {
	return []string{r.Ended.UTC().Format(time.RFC3339), strconv.Itoa(r.All), strconv.Itoa(r.Unused), strconv.Itoa(r.Deleted), strconv.Itoa(r.Overdue)}
}

var onlyIndex = indexes.Unique("only", indexes.String, func(Round) string { return "last" })

// NewTable makes the table "identity-rounds".
func NewTable(db *statedb.DB) (statedb.RWTable[Round], error) {
	return statedb.NewTable(db, "identity-rounds", onlyIndex)
}

// Package policyprogress holds the revision of the identities that the policy maps reflect. An identity must not be used before every policy knows it.
package policyprogress

import (
	"strconv"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/indexes"
	"github.com/waggle-net/waggle/pkg/tables/identities"
)

// Progress is the only row of the table.
type Progress struct {
	// Identities is the highest revision of the table identities that the maps reflect: every identity up to that revision is in all policy entries
	// that match it. It never falls.
	Identities statedb.Revision `json:"identities"`
	// Revision counts the changes of the enforced policies on this node, from 1.
	Revision uint32 `json:"revision"`
}

// TableHeader implements statedb.TableWritable.
func (Progress) TableHeader() []string { return []string{"Revision", "Identities"} }

// TableRow implements statedb.TableWritable.
func (p Progress) TableRow() []string {
	return []string{strconv.FormatUint(uint64(p.Revision), 10), strconv.FormatUint(p.Identities, 10)}
}

// nameIndex has one key, because there is one row.
var nameIndex = indexes.Unique("name", indexes.String, func(Progress) string { return "policy" })

// Row finds the row.
var Row = nameIndex.Query("policy")

// NewTable makes the table "policy-progress".
func NewTable(db *statedb.DB) (statedb.RWTable[Progress], error) {
	return statedb.NewTable(db, "policy-progress", nameIndex)
}

// Resolved reports whether all policies know an identity with its current labels. It returns false for an identity that is not in known.
func Resolved(txn statedb.ReadTxn, table statedb.Table[Progress], known statedb.Table[*identities.Identity], id uint32) bool {
	row, _, found := table.Get(txn, Row)
	_, revision, exists := known.Get(txn, identities.ByID(id))
	return found && exists && revision <= row.Identities
}

// Package policyentries holds the compiled policies in the maps, one row for each policy id.
package policyentries

import (
	"strconv"
	"strings"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/pkg/indexes"
	"github.com/waggle-net/waggle/pkg/policy/policycompiler"
)

// Policy is one policy id. Endpoints with the same policies share it. It is never changed in place.
type Policy struct {
	ID      uint32 `json:"id"`      // from 2: 0 and 1 need no entries
	Shape   uint32 `json:"shape"`   // see bpf/lib/policy.h
	Entries int    `json:"entries"` // in the map policy
	Ranges  int    `json:"ranges"`  // in the map policy_ranges
	// Policies are the objects whose rules form the policy, sorted, limited to a few.
	Policies []string `json:"policies,omitempty"`
	Users    int      `json:"users"` // number of endpoint directions that use it; 0 before its removal
	// Compiled is the policy's contents in the maps.
	Compiled *policycompiler.Compiled `json:"-" yaml:"-"`
	// Status is Done when the maps hold the whole policy, Pending after entries were found changed, and Error when the kernel or the size of a map
	// prevented a write.
	Status reconciler.Status `json:"status"`
}

// Clone returns a copy that may be changed and inserted.
func (p *Policy) Clone() *Policy { c := *p; return &c }

// GetStatus returns the status of the row.
func (p *Policy) GetStatus() reconciler.Status { return p.Status }

// WithStatus sets the status of a clone.
func (p *Policy) WithStatus(s reconciler.Status) *Policy { p.Status = s; return p }

// TableHeader implements statedb.TableWritable.
func (*Policy) TableHeader() []string {
	return []string{"ID", "Entries", "Ranges", "Users", "Policies", "Status"}
}

// TableRow implements statedb.TableWritable.
func (p *Policy) TableRow() []string {
	return []string{strconv.FormatUint(uint64(p.ID), 10), strconv.Itoa(p.Entries), strconv.Itoa(p.Ranges), strconv.Itoa(p.Users),
		strings.Join(p.Policies, ", "), p.Status.Kind.String()}
}

var idIndex = indexes.Unique("id", indexes.Uint32, func(p *Policy) uint32 { return p.ID })

// ByID finds a compiled policy.
var ByID = idIndex.Query

// NewTable makes the table "policy-entries".
func NewTable(db *statedb.DB) (statedb.RWTable[*Policy], error) {
	return statedb.NewTable(db, "policy-entries", idIndex)
}

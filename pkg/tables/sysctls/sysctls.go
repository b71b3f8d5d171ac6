// Package sysctls holds the kernel settings that the agent wants.
package sysctls

import (
	"iter"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
	"github.com/cilium/statedb/reconciler"
)

// OwnerPodLinks is the owner of the settings of single pods' links; they come and go with each pod.
const OwnerPodLinks = "pod-links"

// Setting is one row. Only settings of the network namespace are allowed.
type Setting struct {
	Name     string            `json:"name"`     // path below /proc/sys with slashes, e.g. "net/ipv4/conf/all/rp_filter"
	Value    string            `json:"value"`    // what must be read back
	Owner    string            `json:"owner"`    // the feature that wants it
	Optional bool              `json:"optional"` // a kernel without it is no error
	Status   reconciler.Status `json:"status"`
}

// Clone returns a copy that may be changed and inserted.
func (s *Setting) Clone() *Setting { c := *s; return &c }

// Equal compares the desired part.
func (s *Setting) Equal(o *Setting) bool {
	return s.Name == o.Name && s.Value == o.Value && s.Owner == o.Owner && s.Optional == o.Optional
}

// GetStatus returns the status of the row.
func (s *Setting) GetStatus() reconciler.Status { return s.Status }

// WithStatus sets the status of a clone.
func (s *Setting) WithStatus(st reconciler.Status) *Setting { s.Status = st; return s }

// TableHeader implements statedb.TableWritable.
func (*Setting) TableHeader() []string { return []string{"Name", "Value", "Owner", "Status"} }

// TableRow implements statedb.TableWritable.
func (s *Setting) TableRow() []string {
	return []string{s.Name, s.Value, s.Owner, s.Status.Kind.String()}
}

var nameIndex = statedb.Index[*Setting, string]{
	Name:       "name",
	FromObject: func(s *Setting) index.KeySet { return index.NewKeySet(index.String(s.Name)) },
	FromKey:    index.String,
	FromString: index.FromString,
	Unique:     true,
}

var ownerIndex = statedb.Index[*Setting, string]{
	Name:       "owner",
	FromObject: func(s *Setting) index.KeySet { return index.NewKeySet(index.String(s.Owner)) },
	FromKey:    index.String,
	FromString: index.FromString,
}

// Queries.
var (
	ByName  = nameIndex.Query
	ByOwner = ownerIndex.Query
)

// Lasting are the settings that belong to no single pod, of which a node has as many as it has pods.
func Lasting(txn statedb.ReadTxn, table statedb.Table[*Setting]) iter.Seq[*Setting] {
	return func(yield func(*Setting) bool) {
		for s := range table.LowerBound(txn, ByOwner("")) {
			if s.Owner >= OwnerPodLinks {
				break
			}
			if !yield(s) {
				return
			}
		}
		for s := range table.LowerBound(txn, ByOwner(OwnerPodLinks+"\x00")) { // the first that follows
			if !yield(s) {
				return
			}
		}
	}
}

// NewTable makes the table "sysctls".
func NewTable(db *statedb.DB) (statedb.RWTable[*Setting], error) {
	return statedb.NewTable(db, "sysctls", nameIndex, ownerIndex)
}

// Writer lets features contribute settings; each owner has a set of its own.
type Writer interface {
	// Replace makes settings the complete set of owner, in one commit. A name that another owner has is left out and
	// named in the error.
	Replace(owner string, settings []Setting) error
	// Update adds settings to the set of owner, or changes them, and removes those of the given names, in one commit. A name
	// that is in both lists stays. A name that another owner has is left out: one to add is named in the error.
	Update(owner string, put []Setting, remove []string) error
}

// Package sysctls holds the kernel settings that the agent wants.
package sysctls

import (
	"iter"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/pkg/indexes"
)

// OwnerPodLinks is the owner of the settings of pod links, which are added and removed with each pod.
const OwnerPodLinks = "pod-links"

// Setting is one kernel setting. Only settings of the network namespace are allowed.
type Setting struct {
	Name     string            `json:"name"`     // path below /proc/sys with slashes, e.g. "net/ipv4/conf/all/rp_filter"
	Value    string            `json:"value"`    // expected value when read back
	Owner    string            `json:"owner"`    // the feature that wants it
	Optional bool              `json:"optional"` // not an error if the kernel lacks it
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

var nameIndex = indexes.Unique("name", indexes.String, func(s *Setting) string { return s.Name })
var ownerIndex = indexes.Shared("owner", indexes.String, func(s *Setting) string { return s.Owner })

// Queries.
var (
	ByName  = nameIndex.Query
	ByOwner = ownerIndex.Query
)

// Lasting returns the settings except the ones of pod links, whose number grows with the number of pods.
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
		for s := range table.LowerBound(txn, ByOwner(OwnerPodLinks+"\x00")) { // the first owner after OwnerPodLinks
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

// Writer adds settings; each owner has its own set.
type Writer interface {
	// Replace makes settings the complete set of owner, in one commit. A name that belongs to another owner is omitted and named in the error.
	Replace(owner string, settings []Setting) error
	// Update adds or changes settings of owner and removes the named ones, in one commit. A name in both lists stays. A name that belongs to another
	// owner is omitted, and named in the error if it is in put.
	Update(owner string, put []Setting, remove []string) error
}

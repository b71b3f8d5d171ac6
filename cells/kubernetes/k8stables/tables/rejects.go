package tables

import (
	"strconv"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/indexes"
	"github.com/waggle-net/waggle/pkg/printable"
)

// Reject is an object of the API server that is malformed as a whole or in part. If no part is usable, the row of its last good state, if there is
// one, stays in its table.
type Reject struct {
	Resource string `json:"resource"`       // resource name as in RBAC, e.g. "ciliumnodes.cilium.io"
	Object   string `json:"object"`         // "name" or "namespace/name"
	UID      string `json:"uid,omitempty"`  // UID of the object
	Reason   string `json:"reason"`         // the error; printable and short
	Kept     bool   `json:"kept,omitempty"` // the last good row of the object is still in use
	Used     bool   `json:"used,omitempty"` // the object is in use, without the part that Reason names
}

// Key returns the resource and the object.
func (r Reject) Key() string { return r.Resource + " " + r.Object }

// TableHeader implements statedb.TableWritable.
func (Reject) TableHeader() []string { return []string{"Resource", "Object", "Kept", "Used", "Reason"} }

// TableRow implements statedb.TableWritable.
func (r Reject) TableRow() []string {
	return []string{r.Resource, printable.Text(r.Object), strconv.FormatBool(r.Kept), strconv.FormatBool(r.Used), r.Reason}
}

var rejectIndex = indexes.Unique("object", indexes.String, Reject.Key)

// RejectByKey queries by [Reject.Key].
var RejectByKey = rejectIndex.Query

// NewRejectTable creates the table "k8s-rejects".
func NewRejectTable(db *statedb.DB) (statedb.RWTable[Reject], error) {
	return statedb.NewTable(db, "k8s-rejects", rejectIndex)
}

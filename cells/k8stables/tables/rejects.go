package tables

import (
	"strconv"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"

	"github.com/waggle-net/waggle/pkg/printable"
)

// Reject is an object of the API server that cannot be used as it is. When nothing of it can, the row of its last good state, if there is one,
// stays in its table.
type Reject struct {
	Resource string `json:"resource"`       // as in RBAC, e.g. "ciliumnodes.cilium.io"
	Object   string `json:"object"`         // "name" or "namespace/name"
	UID      string `json:"uid,omitempty"`  // of the object
	Reason   string `json:"reason"`         // what is wrong; printable and short
	Kept     bool   `json:"kept,omitempty"` // an older state of the object is still in use
	Used     bool   `json:"used,omitempty"` // the object is in use, without what the reason names
}

// Key is resource and name.
func (r Reject) Key() string { return r.Resource + " " + r.Object }

// TableHeader implements statedb.TableWritable.
func (Reject) TableHeader() []string { return []string{"Resource", "Object", "Kept", "Used", "Reason"} }

// TableRow implements statedb.TableWritable.
func (r Reject) TableRow() []string {
	return []string{r.Resource, printable.Text(r.Object), strconv.FormatBool(r.Kept), strconv.FormatBool(r.Used), r.Reason}
}

var rejectIndex = statedb.Index[Reject, string]{
	Name:       "object",
	FromObject: func(r Reject) index.KeySet { return index.NewKeySet(index.String(r.Key())) },
	FromKey:    index.String,
	FromString: index.FromString,
	Unique:     true,
}

// RejectByKey finds an object by [Reject.Key].
var RejectByKey = rejectIndex.Query

// NewRejectTable makes the table "k8s-rejects".
func NewRejectTable(db *statedb.DB) (statedb.RWTable[Reject], error) {
	return statedb.NewTable(db, "k8s-rejects", rejectIndex)
}

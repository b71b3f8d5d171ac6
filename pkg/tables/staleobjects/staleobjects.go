// Package staleobjects holds objects whose node, pod or other owner no longer exists.
package staleobjects

import (
	"strconv"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/indexes"
)

// Object is an object without an existing owner, as far as known.
type Object struct {
	Resource string `json:"resource"` // as in RBAC, e.g. "ciliumendpoints.cilium.io"
	Name     string `json:"name"`     // "namespace/name", or "name"
	UID      string `json:"uid"`
	Reason   string `json:"reason"`
	Rounds   int    `json:"rounds"` // consecutive rounds that found the object stale
	Error    string `json:"error,omitempty"`
}

// TableHeader implements statedb.TableWritable.
func (Object) TableHeader() []string {
	return []string{"Resource", "Name", "Reason", "Rounds", "Error"}
}

// TableRow implements statedb.TableWritable.
func (o Object) TableRow() []string {
	return []string{o.Resource, o.Name, o.Reason, strconv.Itoa(o.Rounds), o.Error}
}

// Key is "resource/name".
func (o Object) Key() string { return o.Resource + "/" + o.Name }

var nameIndex = indexes.Unique("name", indexes.String, Object.Key)

// ByName finds a row by its Key.
var ByName = nameIndex.Query

// NewTable makes the table "stale-objects".
func NewTable(db *statedb.DB) (statedb.RWTable[Object], error) {
	return statedb.NewTable(db, "stale-objects", nameIndex)
}

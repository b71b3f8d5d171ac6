package k8stables

import (
	"strconv"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/indexes"
)

// status of a document.
type status string

const (
	used     status = "used"     // its object is in a table
	ignored  status = "ignored"  // valid, but not for this agent, or an earlier file has the same object
	rejected status = "rejected" // invalid
)

// manifest is one document of a file, or one item of a List.
type manifest struct {
	File   string `json:"file"` // name inside the directory
	Line   int    `json:"line"` // first line of the document, from 1; 0 for the whole file
	Item   int    `json:"item"` // index in a List, from 1; 0 when the document is no List
	Kind   string `json:"kind,omitempty"`
	Name   string `json:"name,omitempty"` // "name" or "namespace/name"
	Status status `json:"status"`
	Reason string `json:"reason,omitempty"` // reason for the status, as text for users; printable and short
}

// TableHeader implements statedb.TableWritable.
func (manifest) TableHeader() []string {
	return []string{"File", "Line", "Item", "Kind", "Name", "Status", "Reason"}
}

// TableRow implements statedb.TableWritable.
func (m manifest) TableRow() []string {
	return []string{m.File, strconv.Itoa(m.Line), strconv.Itoa(m.Item), m.Kind, m.Name, string(m.Status), m.Reason}
}

// Key returns the position of the document. Lines and items are zero-padded, so that rows sort in the order of the file.
func (m manifest) Key() string {
	const digits = 7
	pad := func(n int) string {
		s := strconv.Itoa(n)
		for len(s) < digits {
			s = "0" + s
		}
		return s
	}
	return m.File + ":" + pad(m.Line) + ":" + pad(m.Item)
}

// Equal compares all fields.
func (m manifest) Equal(o manifest) bool { return m == o }

var manifestIndex = indexes.Unique("place", indexes.String, manifest.Key)
var statusIndex = indexes.Shared("status", indexes.String, func(m manifest) string { return string(m.Status) })

// newManifestTable creates the table "manifests".
func newManifestTable(db *statedb.DB) (statedb.RWTable[manifest], error) {
	return statedb.NewTable(db, "manifests", manifestIndex, statusIndex)
}

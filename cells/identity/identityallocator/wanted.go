package identityallocator

import (
	"maps"
	"strconv"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/pkg/indexes"
	"github.com/waggle-net/waggle/pkg/printable"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
)

// wanted is a label set that needs a CiliumIdentity. The row is deleted when the object is in cilium-identities.
type wanted struct {
	Labels map[string]string `json:"labels"`           // must not be modified in place
	Prefer uint32            `json:"prefer,omitempty"` // the number that endpoints already have; 0 for any
	ID     uint32            `json:"id,omitempty"`     // number of the object, once it is created; set by the reconciler
	Full   string            `json:"full,omitempty"`   // no number is free, and the labels that cause it; set by the reconciler
	Status reconciler.Status `json:"status"`

	again bool // the created object was deleted: create it again
}

func (w *wanted) key() string { return cilium.LabelsKey(w.Labels) }

// longestName limits a label set in texts, in bytes: a pod may have a megabyte of labels.
const longestName = 200

// name returns the label set for texts.
func (w *wanted) name() string { return printable.Short(w.key(), longestName) }

func (w *wanted) clone() *wanted { c := *w; return &c }

func (w *wanted) withStatus(s reconciler.Status) *wanted { w.Status = s; return w }

// equal compares the desired parts. A row with again set equals none.
func (w *wanted) equal(o *wanted) bool {
	return !w.again && w.Prefer == o.Prefer && maps.Equal(w.Labels, o.Labels)
}

// TableHeader implements statedb.TableWritable.
func (*wanted) TableHeader() []string { return []string{"Labels", "Identity", "Status", "Error"} }

// TableRow implements statedb.TableWritable.
func (w *wanted) TableRow() []string {
	message := "-"
	if text := w.Status.GetError(); text != "" {
		message = text
	}
	return []string{w.key(), strconv.FormatUint(uint64(w.ID), 10), w.Status.Kind.String(), message}
}

var wantedIndex = indexes.Unique("labels", indexes.String, (*wanted).key)

var wantedByLabels = wantedIndex.Query

func newWantedTable(db *statedb.DB) (statedb.RWTable[*wanted], error) {
	return statedb.NewTable(db, "desired-identities", wantedIndex)
}

package identity

import (
	"maps"
	"strconv"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/pkg/printable"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
)

// wanted is a set of labels for which there should be a CiliumIdentity and is none. The row goes when the object shows in
// cilium-identities.
type wanted struct {
	Labels map[string]string `json:"labels"`           // never changed in place
	Prefer uint32            `json:"prefer,omitempty"` // the number that endpoints have already; 0 for any
	ID     uint32            `json:"id,omitempty"`     // of the object, once the server has it; set by the reconciler
	Full   string            `json:"full,omitempty"`   // no number is free, and the labels that make them; set by the reconciler
	Status reconciler.Status `json:"status"`

	again bool // the object that was made is gone: make it anew
}

func (w *wanted) key() string { return cilium.LabelsKey(w.Labels) }

// longestName is how much of a set of labels is told: a pod may have a megabyte of them.
const longestName = 200

// name is the set of labels for people.
func (w *wanted) name() string { return printable.Short(w.key(), longestName) }

func (w *wanted) clone() *wanted { c := *w; return &c }

func (w *wanted) withStatus(s reconciler.Status) *wanted { w.Status = s; return w }

// equal compares the desired part; a row that is to be made anew equals none.
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

var wantedIndex = statedb.Index[*wanted, string]{
	Name:       "labels",
	FromObject: func(w *wanted) index.KeySet { return index.NewKeySet(index.String(w.key())) },
	FromKey:    index.String,
	FromString: index.FromString,
	Unique:     true,
}

var wantedByLabels = wantedIndex.Query

func newWantedTable(db *statedb.DB) (statedb.RWTable[*wanted], error) {
	return statedb.NewTable(db, "desired-identities", wantedIndex)
}

package cilium

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/indexes"
	"github.com/waggle-net/waggle/pkg/printable"
)

// Identity is a CiliumIdentity: a number for a set of labels. Maps are never changed in place.
type Identity struct {
	ID     uint32            `json:"id"`
	UID    string            `json:"uid,omitempty"`
	Labels map[string]string `json:"labels,omitempty"` // "source:key" -> value
}

// Key is the name of the object, which is the number.
func (i *Identity) Key() string { return strconv.FormatUint(uint64(i.ID), 10) }

// Equal compares everything.
func (i *Identity) Equal(o *Identity) bool {
	return i.ID == o.ID && i.UID == o.UID && maps.Equal(i.Labels, o.Labels)
}

// LabelsKey returns a canonical text for a set of labels: "source:key=value;" for each, sorted.
func LabelsKey(labels map[string]string) string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		b.WriteString(k)
		b.WriteByte('=')
		b.WriteString(labels[k])
		b.WriteByte(';')
	}
	return b.String()
}

// TableHeader implements statedb.TableWritable.
func (*Identity) TableHeader() []string { return []string{"CiliumIdentity", "Labels"} }

// TableRow implements statedb.TableWritable.
func (i *Identity) TableRow() []string { return []string{i.Key(), printable.Text(LabelsKey(i.Labels))} }

var identityIndex = indexes.Unique("name", indexes.String, (*Identity).Key)

// IdentityByName finds a row by its number in decimal.
var IdentityByName = identityIndex.Query

var identityLabelsIndex = indexes.Shared("labels", indexes.Digest, func(o *Identity) string { return LabelsKey(o.Labels) })

// IdentityByLabels finds the identities of a set of labels by its [LabelsKey]. Temporarily there may be two, if two nodes create one at the same time;
// the lowest number is the preferred one.
var IdentityByLabels = identityLabelsIndex.Query

// NewIdentityTable makes the table "cilium-identities".
func NewIdentityTable(db *statedb.DB) (statedb.RWTable[*Identity], error) {
	return statedb.NewTable(db, "cilium-identities", identityIndex, identityLabelsIndex)
}

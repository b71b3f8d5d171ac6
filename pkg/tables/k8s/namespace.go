package k8s

import (
	"maps"
	"slices"
	"strings"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/indexes"
	"github.com/waggle-net/waggle/pkg/printable"
)

// Namespace holds the labels of a namespace. Maps are never changed in place.
type Namespace struct {
	Name        string            `json:"name"`
	UID         string            `json:"uid,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// Key is the name.
func (n *Namespace) Key() string { return n.Name }

// Equal compares everything.
func (n *Namespace) Equal(o *Namespace) bool {
	return n.Name == o.Name && n.UID == o.UID && maps.Equal(n.Labels, o.Labels) && maps.Equal(n.Annotations, o.Annotations)
}

// TableHeader implements statedb.TableWritable.
func (*Namespace) TableHeader() []string { return []string{"Namespace", "UID", "Labels"} }

// TableRow implements statedb.TableWritable.
func (n *Namespace) TableRow() []string {
	return []string{n.Name, printable.Text(n.UID), showMap(n.Labels)}
}

var namespaceIndex = indexes.Unique("name", indexes.String, func(n *Namespace) string { return n.Name })

// NamespaceByName finds a namespace.
var NamespaceByName = namespaceIndex.Query

// NewNamespaceTable makes the table "k8s-namespaces".
func NewNamespaceTable(db *statedb.DB) (statedb.RWTable[*Namespace], error) {
	return statedb.NewTable(db, "k8s-namespaces", namespaceIndex)
}

// showMap prints a map in a stable order.
func showMap(m map[string]string) string {
	parts := make([]string, 0, len(m))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, k+"="+m[k])
	}
	return printable.Text(strings.Join(parts, ","))
}

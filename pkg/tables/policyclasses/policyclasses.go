// Package policyclasses holds the classes of identities that policy entries may match.
package policyclasses

import (
	"cmp"
	"maps"
	"strconv"
	"strings"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/indexes"
	"github.com/waggle-net/waggle/pkg/labels"
	"github.com/waggle-net/waggle/pkg/printable"
)

// Class is the set of all identities that share some labels: all pods of a cluster, or all pods of a namespace.
type Class struct {
	Number    uint32            `json:"number"`              // from 1; valid only on this node
	Namespace string            `json:"namespace,omitempty"` // empty for all pods of a cluster
	Labels    map[string]string `json:"labels,omitempty"`    // "source:key" -> value
}

// Equal compares everything.
func (c *Class) Equal(o *Class) bool {
	return c.Number == o.Number && c.Namespace == o.Namespace && maps.Equal(c.Labels, o.Labels)
}

// TableHeader implements statedb.TableWritable.
func (*Class) TableHeader() []string { return []string{"Class", "Namespace", "Labels"} }

// TableRow implements statedb.TableWritable.
func (c *Class) TableRow() []string {
	return []string{strconv.FormatUint(uint64(c.Number), 10), printable.Text(cmp.Or(c.Namespace, "-")),
		printable.Text(strings.Join(labels.Format(c.Labels), " "))}
}

// String names the pods of the class.
func (c *Class) String() string {
	if c.Namespace == "" {
		return "all pods"
	}
	return "namespace " + c.Namespace
}

var numberIndex = indexes.Unique("class", indexes.Uint32, func(c *Class) uint32 { return c.Number })

// ByNumber finds a class.
var ByNumber = numberIndex.Query

// NewTable makes the table "policy-classes".
func NewTable(db *statedb.DB) (statedb.RWTable[*Class], error) {
	return statedb.NewTable(db, "policy-classes", numberIndex)
}

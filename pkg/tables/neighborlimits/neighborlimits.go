// Package neighborlimits holds the limits of the kernel's neighbour tables, their usage and the expected number of entries.
package neighborlimits

import (
	"strconv"
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/indexes"
)

// Limit is the neighbour table of one family. All network namespaces of the machine share it.
type Limit struct {
	Family       string    `json:"family"`       // "ipv4" or "ipv6"
	Soft         int       `json:"soft"`         // entries beyond which the kernel removes idle ones early (gc_thresh2)
	Hard         int       `json:"hard"`         // entries beyond which the kernel rejects new ones (gc_thresh3)
	Expected     int       `json:"expected"`     // other nodes on links of this node, and pods of this node
	Entries      int       `json:"entries"`      // entries in the table; multicast and permanent entries do not count against the limits
	Overflows    uint64    `json:"overflows"`    // new entries that the kernel has rejected since boot
	LastOverflow time.Time `json:"lastOverflow"` // when this agent last saw Overflows rise; zero for never
}

// TableHeader implements statedb.TableWritable.
func (Limit) TableHeader() []string {
	return []string{"Family", "Expected", "Entries", "Soft", "Hard", "Overflows", "LastOverflow"}
}

// TableRow implements statedb.TableWritable.
func (l Limit) TableRow() []string {
	last := "-"
	if !l.LastOverflow.IsZero() {
		last = l.LastOverflow.UTC().Format(time.RFC3339)
	}
	return []string{l.Family, strconv.Itoa(l.Expected), strconv.Itoa(l.Entries), strconv.Itoa(l.Soft), strconv.Itoa(l.Hard),
		strconv.FormatUint(l.Overflows, 10), last}
}

var familyIndex = indexes.Unique("family", indexes.String, func(l Limit) string { return l.Family })

// ByFamily finds the row of a family.
var ByFamily = familyIndex.Query

// NewTable makes the table "neighbor-limits".
func NewTable(db *statedb.DB) (statedb.RWTable[Limit], error) {
	return statedb.NewTable(db, "neighbor-limits", familyIndex)
}

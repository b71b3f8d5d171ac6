// Package nodepaths defines the table of the path to the pods of each other node with --routing-mode=hybrid.
package nodepaths

import (
	"iter"
	"strconv"
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/indexes"
	"github.com/waggle-net/waggle/pkg/printable"
)

// Mode is the path of packets to the pods of a node.
type Mode string

// Modes.
const (
	Direct Mode = "direct" // unencapsulated, to the address of the node on a link of this node
	Tunnel Mode = "tunnel" // encapsulated
)

// Path is one row. It is never changed in place.
type Path struct {
	Node  string    `json:"node"`
	Mode  Mode      `json:"mode"`
	Why   string    `json:"why"`   // a sentence, printable
	Since time.Time `json:"since"` // time at which the mode was chosen
}

// Text returns the row as a sentence.
func (p *Path) Text() string {
	return string(p.Mode) + " since " + p.Since.UTC().Format(time.RFC3339) + ": " + printable.Text(p.Why)
}

// TableHeader implements statedb.TableWritable.
func (*Path) TableHeader() []string { return []string{"Node", "Mode", "Since", "Why"} }

// TableRow implements statedb.TableWritable.
func (p *Path) TableRow() []string {
	return []string{printable.Text(p.Node), string(p.Mode), p.Since.UTC().Format(time.RFC3339), printable.Text(p.Why)}
}

var nodeIndex = indexes.Unique("node", indexes.String, func(p *Path) string { return p.Node })

// ByNode finds the row of a node.
var ByNode = nodeIndex.Query

// Summary counts the rows by mode, such as "2 direct, 1 tunnel"; "" without rows.
func Summary(rows iter.Seq[*Path]) string {
	direct, tunnel := 0, 0
	for p := range rows {
		if p.Mode == Direct {
			direct++
		} else {
			tunnel++
		}
	}
	if direct+tunnel == 0 {
		return ""
	}
	return strconv.Itoa(direct) + " direct, " + strconv.Itoa(tunnel) + " tunnel"
}

// NewTable makes the table "node-paths".
func NewTable(db *statedb.DB) (statedb.RWTable[*Path], error) {
	return statedb.NewTable(db, "node-paths", nodeIndex)
}

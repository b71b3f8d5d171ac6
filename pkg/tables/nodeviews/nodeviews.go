// Package nodeviews defines the table of the nodes whose agents know other nodes of the cluster than the agent of this node.
package nodeviews

import (
	"fmt"
	"strconv"
	"time"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"

	"github.com/waggle-net/waggle/pkg/printable"
)

// View is one row: a node whose agent knows other nodes, or the same ones with other addresses, pod ranges or UIDs. It is never changed in place.
type View struct {
	Node string `json:"node"`
	UID  string `json:"uid,omitempty"` // of the object of the node: another one is another node
	// Nodes and Own are the numbers of nodes that the node's agent knows, and that this one knew at that time, each with its own node.
	Nodes int `json:"nodes"`
	Own   int `json:"own"`
	// Difference is the XOR of the hashes of the nodes that one of both knows, or knows with other addresses. It is 0 when the difference is one of
	// the two nodes that compare.
	Difference uint64 `json:"difference"`
	// Suspect is the node whose agent differs from the others: this node, or the one of the row.
	Suspect string    `json:"suspect"`
	Since   time.Time `json:"since"` // beginning of the first probe that found this difference
	Asked   time.Time `json:"asked"` // beginning of the last probe that found a difference
}

// Sentence says what differs, and what to do.
func (v *View) Sentence() string {
	name := printable.Text(v.Node)
	detail := fmt.Sprintf("the agent of %s knows %d nodes and this one %d", name, v.Nodes, v.Own)
	if v.Nodes == v.Own {
		detail = fmt.Sprintf("the agents of %s and of this node know %d nodes each, which are not the same or have other addresses", name, v.Own)
	}
	return fmt.Sprintf("%s: look at the agent of %s. Compare waggle node list on both nodes, and restart that agent if they still differ",
		detail, printable.Text(v.Suspect))
}

// TableHeader implements statedb.TableWritable.
func (*View) TableHeader() []string {
	return []string{"Node", "Nodes", "Own", "Difference", "Suspect", "Since", "Asked"}
}

// TableRow implements statedb.TableWritable.
func (v *View) TableRow() []string {
	return []string{printable.Text(v.Node), strconv.Itoa(v.Nodes), strconv.Itoa(v.Own), fmt.Sprintf("%016x", v.Difference), printable.Text(v.Suspect),
		v.Since.UTC().Format(time.RFC3339), v.Asked.UTC().Format(time.RFC3339)}
}

var nodeIndex = statedb.Index[*View, string]{
	Name:       "node",
	FromObject: func(v *View) index.KeySet { return index.NewKeySet(index.String(v.Node)) },
	FromKey:    index.String,
	FromString: index.FromString,
	Unique:     true,
}

// ByNode finds the row of a node.
var ByNode = nodeIndex.Query

// NewTable makes the table "node-views".
func NewTable(db *statedb.DB) (statedb.RWTable[*View], error) {
	return statedb.NewTable(db, "node-views", nodeIndex)
}

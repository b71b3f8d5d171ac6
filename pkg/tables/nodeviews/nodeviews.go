// Package nodeviews defines the table of the nodes whose agents have another list of cluster nodes than the agent of this node.
package nodeviews

import (
	"fmt"
	"strconv"
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/indexes"
	"github.com/waggle-net/waggle/pkg/printable"
)

// View is a node whose agent knows other nodes, or the same nodes with other addresses, pod ranges or UIDs. It is never changed in place.
type View struct {
	Node string `json:"node"`
	UID  string `json:"uid,omitempty"` // UID of the object of the node; another UID means another node
	// Nodes and Own are the numbers of nodes that the node's agent and this agent knew at that time, each including its own node.
	Nodes int `json:"nodes"`
	Own   int `json:"own"`
	// Difference is the XOR of the hashes of the nodes that only one agent knows, or knows with other addresses. It is 0 if the difference is one of
	// the two compared nodes.
	Difference uint64 `json:"difference"`
	// Suspect is the node whose agent differs from the others: this node, or the node of the row.
	Suspect string    `json:"suspect"`
	Since   time.Time `json:"since"` // beginning of the first probe that found this difference
	Asked   time.Time `json:"asked"` // beginning of the last probe that found a difference
}

// Sentence describes the difference and the remedy.
func (v *View) Sentence() string {
	name := printable.Text(v.Node)
	detail := fmt.Sprintf("the agent of %s knows %d nodes and this one %d", name, v.Nodes, v.Own)
	if v.Nodes == v.Own {
		detail = fmt.Sprintf("the agents of %s and of this node know %d nodes each, which differ in nodes or addresses", name, v.Own)
	}
	return fmt.Sprintf("%s: check the agent of %s. Compare waggle node list on both nodes, and restart that agent if they still differ",
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

var nodeIndex = indexes.Unique("node", indexes.String, func(v *View) string { return v.Node })

// NewTable makes the table "node-views".
func NewTable(db *statedb.DB) (statedb.RWTable[*View], error) {
	return statedb.NewTable(db, "node-views", nodeIndex)
}

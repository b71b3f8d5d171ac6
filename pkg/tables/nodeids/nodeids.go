// Package nodeids defines the table of node ids: small numbers that identify the other nodes of the cluster in BPF maps.
package nodeids

import (
	"strconv"
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/indexes"
	"github.com/waggle-net/waggle/pkg/printable"
)

// Max is the highest id. Ids are dense from 1, because the map of nodes is an array; 0 means that no node is known.
const Max = 16383

// NodeID is an id in use, or an id that is reserved until no flow refers to it.
type NodeID struct {
	ID   uint16 `json:"id"` // 1 to [Max]
	Name string `json:"name"`
	UID  string `json:"uid,omitempty"` // UID of the object of the node
	// Released is the time at which the node was removed; zero while it exists. The id stays reserved until the flow collector has started and
	// completed a pass after that time. After a restart of the agent it is the time of the start.
	Released time.Time `json:"released,omitzero"`
}

// TableHeader implements statedb.TableWritable.
func (*NodeID) TableHeader() []string { return []string{"ID", "Node", "UID", "State"} }

// TableRow implements statedb.TableWritable.
func (n *NodeID) TableRow() []string {
	state := "used"
	if !n.Released.IsZero() {
		state = "released"
	}
	return []string{strconv.Itoa(int(n.ID)), printable.Text(n.Name), printable.Text(n.UID), state}
}

var nameIndex = indexes.Unique("name", indexes.String, func(n *NodeID) string { return n.Name })
var idIndex = indexes.Unique("id", indexes.Uint16, func(n *NodeID) uint16 { return n.ID })

// Queries.
var (
	ByID   = idIndex.Query
	ByName = nameIndex.Query
)

// NewTable makes the table "node-ids".
func NewTable(db *statedb.DB) (statedb.RWTable[*NodeID], error) {
	return statedb.NewTable(db, "node-ids", idIndex, nameIndex)
}

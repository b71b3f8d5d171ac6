// Package nodeupdates holds the updates that the agent writes to the Kubernetes objects of its node, and their results.
package nodeupdates

import (
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/indexes"
	"github.com/waggle-net/waggle/pkg/printable"
)

// State of an update.
type State string

const (
	Waiting State = "waiting" // the update must not be written yet; Message names the missing condition
	Done    State = "done"    // the object has the desired value, as far as known
	Failed  State = "failed"  // the last attempt failed and is repeated; Message says why
)

// Update is one desired value in an object.
type Update struct {
	Name    string    `json:"name"`              // part of the object: "annotations", "condition", ...
	Wanted  string    `json:"wanted"`            // desired value as text
	State   State     `json:"state"`             // see the constants
	Since   time.Time `json:"since"`             // when State was entered
	Message string    `json:"message,omitempty"` // why the update waits, failed, or differs from the desired value
}

// Same compares everything but Since.
func (u Update) Same(o Update) bool {
	u.Since, o.Since = time.Time{}, time.Time{}
	return u == o
}

// TableHeader implements statedb.TableWritable.
func (Update) TableHeader() []string { return []string{"Name", "State", "Wanted", "Message"} }

// TableRow implements statedb.TableWritable.
func (u Update) TableRow() []string {
	return []string{u.Name, string(u.State), u.Wanted, printable.Text(u.Message)}
}

var nameIndex = indexes.Unique("name", indexes.String, func(u Update) string { return u.Name })

// ByName finds a row.
var ByName = nameIndex.Query

// NewNodeTable makes the table "node-updates", of updates of the Node.
func NewNodeTable(db *statedb.DB) (statedb.RWTable[Update], error) {
	return statedb.NewTable(db, "node-updates", nameIndex)
}

// NewCiliumNodeTable makes the table "cilium-node-updates", of updates of the CiliumNode.
func NewCiliumNodeTable(db *statedb.DB) (statedb.RWTable[Update], error) {
	return statedb.NewTable(db, "cilium-node-updates", nameIndex)
}

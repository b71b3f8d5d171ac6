// Package nodeupdates holds what the agent wants to stand in objects of Kubernetes that describe its node, and what has
// become of it.
package nodeupdates

import (
	"time"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"

	"github.com/waggle-net/waggle/pkg/printable"
)

// State of an update.
type State string

const (
	Waiting State = "waiting" // it must not be written yet; Message says what comes before
	Done    State = "done"    // the object is as wanted, as far as is known
	Failed  State = "failed"  // the last attempt failed and is made again; Message says why
)

// Update is one thing that is written.
type Update struct {
	Name    string    `json:"name"`              // what is written: "annotations", "condition", ...
	Wanted  string    `json:"wanted"`            // what shall stand there, for people
	State   State     `json:"state"`             // see the constants
	Since   time.Time `json:"since"`             // when State was entered
	Message string    `json:"message,omitempty"` // why it is waited for, or failed, or is not as wanted
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

var nameIndex = statedb.Index[Update, string]{
	Name:       "name",
	FromObject: func(u Update) index.KeySet { return index.NewKeySet(index.String(u.Name)) },
	FromKey:    index.String,
	FromString: index.FromString,
	Unique:     true,
}

// ByName finds a row.
var ByName = nameIndex.Query

// NewNodeTable makes the table "node-updates", of what is written to the Node.
func NewNodeTable(db *statedb.DB) (statedb.RWTable[Update], error) {
	return statedb.NewTable(db, "node-updates", nameIndex)
}

// NewCiliumNodeTable makes the table "cilium-node-updates", of what is written to the CiliumNode.
func NewCiliumNodeTable(db *statedb.DB) (statedb.RWTable[Update], error) {
	return statedb.NewTable(db, "cilium-node-updates", nameIndex)
}

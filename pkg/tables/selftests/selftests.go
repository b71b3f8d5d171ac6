// Package selftests holds the results of the self-tests of this node: the last real attach (a namespace, ADD, a ping and DEL), and whether the
// container runtime finds the plugin.
package selftests

import (
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/indexes"
)

// Names of self-tests.
const (
	Attach  = "attach"      // a real attach
	Folders = "cni-folders" // whether the container runtime reads the directories of the plugin and its configuration; there is a row only if it does not
)

// State of a self-test.
type State string

const (
	Waiting State = "waiting" // no result yet, or only one of a previous boot
	Passed  State = "passed"
	Failed  State = "failed"
)

// SelfTest is one row.
type SelfTest struct {
	Name    string    `json:"name"`
	State   State     `json:"state"`
	At      time.Time `json:"at"`                // time of the result; zero while Waiting
	Message string    `json:"message,omitempty"` // missing condition, or the step that failed and why
}

// TableHeader implements statedb.TableWritable.
func (SelfTest) TableHeader() []string { return []string{"Name", "State", "Message"} }

// TableRow implements statedb.TableWritable.
func (s SelfTest) TableRow() []string { return []string{s.Name, string(s.State), s.Message} }

var nameIndex = indexes.Unique("name", indexes.String, func(s SelfTest) string { return s.Name })

// ByName finds a self-test.
var ByName = nameIndex.Query

// NewTable makes the table "self-tests".
func NewTable(db *statedb.DB) (statedb.RWTable[SelfTest], error) {
	return statedb.NewTable(db, "self-tests", nameIndex)
}

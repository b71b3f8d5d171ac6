package crdcheck

import (
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/indexes"
)

// State is the result of a comparison.
type State string

const (
	OK      State = "ok"      // the wanted version
	Newer   State = "newer"   // for a later version of the agent; includes all that this agent needs
	Old     State = "old"     // for an older version of the agent, or without a version
	Missing State = "missing" // not defined
	Unknown State = "unknown" // the API server has not answered yet
)

// Definition is one definition that the agent needs.
type Definition struct {
	Name  string `json:"name"`            // e.g. ciliumnodes.cilium.io
	Want  string `json:"want"`            // version that this agent needs
	Found string `json:"found,omitempty"` // version in the cluster; empty without a version and while missing or unknown
	State State  `json:"state"`
}

// TableHeader implements statedb.TableWritable.
func (Definition) TableHeader() []string { return []string{"Name", "Want", "Found", "State"} }

// TableRow implements statedb.TableWritable.
func (d Definition) TableRow() []string { return []string{d.Name, d.Want, d.Found, string(d.State)} }

var nameIndex = indexes.Unique("name", indexes.String, func(d Definition) string { return d.Name })

// byName queries by the name of a definition.
var byName = nameIndex.Query

func newTable(db *statedb.DB) (statedb.RWTable[Definition], error) {
	return statedb.NewTable(db, "crds", nameIndex)
}

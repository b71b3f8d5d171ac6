package crds

import (
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
)

// State of a definition.
type State string

const (
	OK      State = "ok"      // as wanted
	Newer   State = "newer"   // made for a later version of the agent; it holds all that this one needs
	Old     State = "old"     // made for an earlier version of the agent, or by somebody who wrote no version
	Missing State = "missing" // not there
	Unknown State = "unknown" // the API server did not say
)

// Definition is a row: one definition that the agent needs.
type Definition struct {
	Name  string `json:"name"`            // e.g. ciliumnodes.cilium.io
	Want  string `json:"want"`            // version that this agent was made for
	Found string `json:"found,omitempty"` // version in the cluster; empty when it has none, is missing or unknown
	State State  `json:"state"`
}

// TableHeader implements statedb.TableWritable.
func (Definition) TableHeader() []string { return []string{"Name", "Want", "Found", "State"} }

// TableRow implements statedb.TableWritable.
func (d Definition) TableRow() []string { return []string{d.Name, d.Want, d.Found, string(d.State)} }

var nameIndex = statedb.Index[Definition, string]{
	Name:       "name",
	FromObject: func(d Definition) index.KeySet { return index.NewKeySet(index.String(d.Name)) },
	FromKey:    index.String,
	FromString: index.FromString,
	Unique:     true,
}

// byName finds a definition.
var byName = nameIndex.Query

func newTable(db *statedb.DB) (statedb.RWTable[Definition], error) {
	return statedb.NewTable(db, "crds", nameIndex)
}

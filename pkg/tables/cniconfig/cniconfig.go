// Package cniconfig holds the one row that says what has become of the CNI configuration list.
package cniconfig

import (
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
)

// State is where the file stands.
type State string

// States of the file.
const (
	Waiting State = "waiting" // pods cannot be attached yet; a file of an earlier run stays
	Written State = "written" // the file is there with the contents that are wanted
	Failed  State = "failed"  // it could not be written; this is tried again
	// Shadowed is written in vain: another configuration comes before it by name, and runtimes use the first one.
	Shadowed State = "shadowed"
)

// What names end with that the agent makes beside the file. Runtimes do not read either.
const (
	AsideSuffix     = ".waggle_bak" // a configuration of somebody else that --cni-exclusive put aside
	TemporarySuffix = ".waggle_tmp" // what is there while the file is written
)

// Config is the file. There is no row while the agent manages no file.
type Config struct {
	Path    string `json:"path"`
	State   State  `json:"state"`
	Message string `json:"message,omitempty"` // what is waited for, which file comes before ours, or the error
}

// TableHeader implements statedb.TableWritable.
func (Config) TableHeader() []string { return []string{"Path", "State", "Message"} }

// TableRow implements statedb.TableWritable.
func (c Config) TableRow() []string { return []string{c.Path, string(c.State), c.Message} }

var pathIndex = statedb.Index[Config, string]{
	Name:       "path",
	FromObject: func(c Config) index.KeySet { return index.NewKeySet(index.String(c.Path)) },
	FromKey:    index.String,
	FromString: index.FromString,
	Unique:     true,
}

// ByPath finds the row.
var ByPath = pathIndex.Query

// NewTable makes the table "cni-config".
func NewTable(db *statedb.DB) (statedb.RWTable[Config], error) {
	return statedb.NewTable(db, "cni-config", pathIndex)
}

// Package cniconfig holds one row: the state of the CNI configuration list.
package cniconfig

import (
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/indexes"
)

// State is the state of the file.
type State string

// States of the file.
const (
	Waiting State = "waiting" // pods cannot be attached yet; a file of a previous run stays
	Written State = "written" // the file exists with the desired contents
	Failed  State = "failed"  // the write failed and is repeated
	// Shadowed means that the file is written without effect: runtimes use the first configuration by name, and another one sorts before it.
	Shadowed State = "shadowed"
	// Conflict means that another program keeps changing the file. The agent restores the file with increasing delays.
	Conflict State = "conflict"
)

// Suffixes of the names of other files that the agent creates in the directory. Runtimes read neither.
const (
	BackupSuffix    = ".waggle_bak" // another writer's configuration that --cni-exclusive renamed
	TemporarySuffix = ".waggle_tmp" // temporary file during a write
)

// Config describes the file. There is no row while the agent manages no file.
type Config struct {
	Path    string `json:"path"`
	State   State  `json:"state"`
	Message string `json:"message,omitempty"` // the missing condition, the file that sorts before this one, additions of other programs, or the error
}

// TableHeader implements statedb.TableWritable.
func (Config) TableHeader() []string { return []string{"Path", "State", "Message"} }

// TableRow implements statedb.TableWritable.
func (c Config) TableRow() []string { return []string{c.Path, string(c.State), c.Message} }

var pathIndex = indexes.Unique("path", indexes.String, func(c Config) string { return c.Path })

// ByPath finds the row.
var ByPath = pathIndex.Query

// NewTable makes the table "cni-config".
func NewTable(db *statedb.DB) (statedb.RWTable[Config], error) {
	return statedb.NewTable(db, "cni-config", pathIndex)
}

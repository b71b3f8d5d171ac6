// Package configs holds the options of the agent with their effective values, and the options of Cilium that the agent ignores.
package configs

import (
	"cmp"
	"fmt"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/indexes"
	"github.com/waggle-net/waggle/pkg/printable"
)

// Config is one option.
type Config struct {
	Key     string `json:"key"`              // name of the flag
	Value   string `json:"value"`            // effective value
	Default string `json:"default"`          // value if the option is not set
	Source  string `json:"source"`           // "flag", "environment", "directory" or "default"
	Origin  string `json:"origin,omitempty"` // flag, variable or file that set it; empty for a default

	Ignored     bool   `json:"ignored,omitempty"`     // an option of Cilium without meaning in Waggle; Value and Default are empty
	Unprotected string `json:"unprotected,omitempty"` // protection that the ignored option gives in Cilium and that is missing in Waggle; empty without one

	Changed    bool   `json:"changed,omitempty"`    // the files of --config-dir give it another value, which applies after a restart of the agent
	Next       string `json:"next,omitempty"`       // value after a restart, if Changed
	NextSource string `json:"nextSource,omitempty"` // as Source, if Changed

	// Problem is set only for config-dir: the reason why the directory cannot be read, or why the agent would not start again with its files. One line.
	Problem string `json:"problem,omitempty"`
}

// State is "used", "changed", "faulty", "ignored" or "unprotected".
func (c Config) State() string {
	switch {
	case c.Unprotected != "":
		return "unprotected"
	case c.Ignored:
		return "ignored"
	case c.Problem != "":
		return "faulty"
	case c.Changed:
		return "changed"
	}
	return "used"
}

// shown is the maximum number of bytes of a value after a restart that a table or a status prints. A value may be a whole file.
const shown = 80

// AfterRestart returns the start of the value after a restart, quoted if it is empty, and "-" for an option that does not change.
func (c Config) AfterRestart() string {
	switch {
	case !c.Changed:
		return "-"
	case c.Next == "":
		return `""`
	}
	return printable.Short(c.Next, shown)
}

// Sentence describes the change of an option whose value is another one after a restart.
func (c Config) Sentence() string {
	return fmt.Sprintf("%s now, %s after a restart of the agent (%s)", cmp.Or(printable.Short(c.Value, shown), `""`), c.AfterRestart(), c.NextSource)
}

// TableHeader implements statedb.TableWritable.
func (Config) TableHeader() []string {
	return []string{"Key", "Value", "Default", "Source", "Origin", "AfterRestart", "State"}
}

// TableRow implements statedb.TableWritable.
func (c Config) TableRow() []string {
	return []string{c.Key, cmp.Or(c.Value, "-"), cmp.Or(c.Default, "-"), c.Source, cmp.Or(c.Origin, "-"), c.AfterRestart(), c.State()}
}

var keyIndex = indexes.Unique("key", indexes.String, func(c Config) string { return c.Key })
var sourceIndex = indexes.Shared("source", indexes.String, func(c Config) string { return c.Source })

// ByKey finds one option.
var ByKey = keyIndex.Query

// NewTable makes the table "configs".
func NewTable(db *statedb.DB) (statedb.RWTable[Config], error) {
	return statedb.NewTable(db, "configs", keyIndex, sourceIndex)
}

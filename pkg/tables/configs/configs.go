// Package configs holds the options of the agent with their effective values, and the options of Cilium that the agent ignores.
package configs

import (
	"cmp"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
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
}

// State is "used", "ignored" or "unprotected".
func (c Config) State() string {
	switch {
	case c.Unprotected != "":
		return "unprotected"
	case c.Ignored:
		return "ignored"
	}
	return "used"
}

// TableHeader implements statedb.TableWritable.
func (Config) TableHeader() []string {
	return []string{"Key", "Value", "Default", "Source", "Origin", "State"}
}

// TableRow implements statedb.TableWritable.
func (c Config) TableRow() []string {
	return []string{c.Key, cmp.Or(c.Value, "-"), cmp.Or(c.Default, "-"), c.Source, cmp.Or(c.Origin, "-"), c.State()}
}

var keyIndex = statedb.Index[Config, string]{
	Name:       "key",
	FromObject: func(c Config) index.KeySet { return index.NewKeySet(index.String(c.Key)) },
	FromKey:    index.String,
	FromString: index.FromString,
	Unique:     true,
}

var sourceIndex = statedb.Index[Config, string]{
	Name:       "source",
	FromObject: func(c Config) index.KeySet { return index.NewKeySet(index.String(c.Source)) },
	FromKey:    index.String,
	FromString: index.FromString,
}

// ByKey finds one option.
var ByKey = keyIndex.Query

// NewTable makes the table "configs".
func NewTable(db *statedb.DB) (statedb.RWTable[Config], error) {
	return statedb.NewTable(db, "configs", keyIndex, sourceIndex)
}

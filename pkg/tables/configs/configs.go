// Package configs holds the options of the agent with the values it runs with, and the options of Cilium that it ignores.
package configs

import (
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
)

// Config is one option.
type Config struct {
	Key     string `json:"key"`              // name of the flag
	Value   string `json:"value"`            // what the agent uses
	Default string `json:"default"`          // what it would use if nobody had set it
	Source  string `json:"source"`           // "flag", "environment", "directory" or "default"
	Origin  string `json:"origin,omitempty"` // flag, variable or file that set it; empty for a default

	Ignored     bool   `json:"ignored,omitempty"`     // it is an option of Cilium that means nothing here; Value and Default are empty
	Unprotected string `json:"unprotected,omitempty"` // what an ignored option would protect in Cilium, and is not protected; empty when it protects nothing
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
	return []string{c.Key, orDash(c.Value), orDash(c.Default), c.Source, orDash(c.Origin), c.State()}
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
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

// Queries.
var (
	ByKey    = keyIndex.Query    // one option
	BySource = sourceIndex.Query // all options that one source set
)

// NewTable makes the table "configs".
func NewTable(db *statedb.DB) (statedb.RWTable[Config], error) {
	return statedb.NewTable(db, "configs", keyIndex, sourceIndex)
}

// Package health holds the health reports of the modules (table "health") and the duration of each start hook (table "bootstrap").
package health

import (
	"cmp"
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"

	"github.com/waggle-net/waggle/pkg/column"
	"github.com/waggle-net/waggle/pkg/indexes"
)

// Level of a report.
type Level string

const (
	OK       Level = "OK"       // the component works
	Degraded Level = "Degraded" // the component does not work; Error says why
	Stopped  Level = "Stopped"  // the component has ended and reports no longer
)

// Status is the last report of one component of one module.
type Status struct {
	Module    string    `json:"module"`           // full module id; nested modules joined with dots
	Component string    `json:"component"`        // scopes below the module joined with dots; empty for the module itself
	Level     Level     `json:"level"`            // see the constants
	Message   string    `json:"message"`          // text from the component
	Error     string    `json:"error,omitempty"`  // cause; only when degraded
	LastOK    time.Time `json:"lastOK,omitzero"`  // last time at which the component was known to be OK; while it is OK, the time of its last new message
	UpdatedAt time.Time `json:"updatedAt"`        // when this row was written
	Count     uint64    `json:"count"`            // number of level changes; a high number means flapping
	Closed    bool      `json:"closed,omitempty"` // the scope has ended; kept because it ended degraded
}

// ID returns module and component with a slash between.
func (s Status) ID() string { return s.Module + "/" + s.Component }

// root is the first name of all ids in the index "identifier", by which cilium-dbg reads the table.
const root = "agent"

// MarshalJSON adds the fields ID and Updated, from which "cilium-dbg status --all-health" makes its tree of modules.
func (s Status) MarshalJSON() ([]byte, error) {
	type row Status
	type id struct{ Module, Component []string }
	identifier := id{append([]string{root}, strings.Split(s.Module, ".")...), []string{}}
	if s.Component != "" {
		identifier.Component = strings.Split(s.Component, ".")
	}
	return json.Marshal(struct {
		row
		ID      id
		Updated time.Time
	}{row(s), identifier, s.UpdatedAt})
}

// Path returns the position in the tree: the module ids, then the scopes.
func (s Status) Path() []string {
	path := strings.Split(s.Module, ".")
	if s.Component != "" {
		path = append(path, strings.Split(s.Component, ".")...)
	}
	return path
}

// TableHeader implements statedb.TableWritable.
func (Status) TableHeader() []string {
	return []string{"Module", "Component", "Level", "Message", "Error", "LastOK", "UpdatedAt", "Count"}
}

// TableRow implements statedb.TableWritable.
func (s Status) TableRow() []string {
	return []string{s.Module, cmp.Or(s.Component, "-"), string(s.Level), cmp.Or(s.Message, "-"), cmp.Or(s.Error, "-"), column.Time(s.LastOK),
		column.Time(s.UpdatedAt), strconv.FormatUint(s.Count, 10)}
}

var idIndex = statedb.Index[Status, string]{
	Name:       "identifier",
	FromObject: func(s Status) index.KeySet { return index.NewKeySet(key(s.ID())) },
	FromKey:    key,
	FromString: func(id string) (index.Key, error) { return key(id), nil },
	Unique:     true,
}

func key(id string) index.Key { return index.String(root + "." + id) }

var levelIndex = indexes.Shared("level", indexes.String, func(s Status) Level { return s.Level })

// Queries.
var (
	ByID    = idIndex.Query    // "<module>/<component>"
	ByLevel = levelIndex.Query // all rows of one level
)

// NewTable makes the table "health".
func NewTable(db *statedb.DB) (statedb.RWTable[Status], error) {
	return statedb.NewTable(db, "health", idIndex, levelIndex)
}

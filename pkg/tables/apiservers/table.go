// Package apiservers holds one row per address of the API server, with what is known of it.
package apiservers

import (
	"strconv"
	"time"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
)

// Reach is what is known about an address.
type Reach string

const (
	Unknown Reach = "unknown" // it was not tried yet
	Yes     Reach = "yes"     // it answered the last time
	No      Reach = "no"      // it did not
)

// Server is one row. Requests go to the active one.
type Server struct {
	Server    string    `json:"server"`          // URL
	Active    bool      `json:"active"`          // exactly one is
	Reachable Reach     `json:"reachable"`       // see the constants
	Since     time.Time `json:"since,omitzero"`  // when Reachable changed, or an error came or went; zero while Unknown
	Error     string    `json:"error,omitempty"` // why it does not answer, or why its answers are of no use; empty when all is well
}

// Well tells whether the server answers as it should.
func (s Server) Well() bool { return s.Reachable == Yes && s.Error == "" }

// TableHeader implements statedb.TableWritable.
func (Server) TableHeader() []string { return []string{"Server", "Active", "Reachable", "Error"} }

// TableRow implements statedb.TableWritable.
func (s Server) TableRow() []string {
	return []string{s.Server, strconv.FormatBool(s.Active), string(s.Reachable), s.Error}
}

var serverIndex = statedb.Index[Server, string]{
	Name:       "server",
	FromObject: func(s Server) index.KeySet { return index.NewKeySet(index.String(s.Server)) },
	FromKey:    index.String,
	FromString: index.FromString,
	Unique:     true,
}

// ByServer finds an address.
var ByServer = serverIndex.Query

// NewTable makes the table "api-servers". It has no initializer: nothing is pruned because of it.
func NewTable(db *statedb.DB) (statedb.RWTable[Server], error) {
	return statedb.NewTable(db, "api-servers", serverIndex)
}

// Package apiservers holds one row per address of the API server, with its reachability.
package apiservers

import (
	"strconv"
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/indexes"
)

// Reach is the reachability of an address.
type Reach string

const (
	Unknown Reach = "unknown" // not tried yet
	Yes     Reach = "yes"     // the last request was answered
	No      Reach = "no"      // the last request was not answered
)

// Server is one address. Requests are sent to the active one.
type Server struct {
	Server    string    `json:"server"`          // URL
	Active    bool      `json:"active"`          // exactly one is
	Reachable Reach     `json:"reachable"`       // see the constants
	Since     time.Time `json:"since,omitzero"`  // when Reachable changed, or an error began or ended; zero while Unknown
	Error     string    `json:"error,omitempty"` // why the server does not answer, or why its answers are unusable; empty without an error
}

// Well reports whether the server answers without error.
func (s Server) Well() bool { return s.Reachable == Yes && s.Error == "" }

// TableHeader implements statedb.TableWritable.
func (Server) TableHeader() []string { return []string{"Server", "Active", "Reachable", "Error"} }

// TableRow implements statedb.TableWritable.
func (s Server) TableRow() []string {
	return []string{s.Server, strconv.FormatBool(s.Active), string(s.Reachable), s.Error}
}

var serverIndex = indexes.Unique("server", indexes.String, func(s Server) string { return s.Server })

// ByServer finds an address.
var ByServer = serverIndex.Query

// NewTable makes the table "api-servers". It has no initializer: nothing is pruned because of it.
func NewTable(db *statedb.DB) (statedb.RWTable[Server], error) {
	return statedb.NewTable(db, "api-servers", serverIndex)
}

// Package driftrepairs counts the agent's objects that another writer changed in the kernel or the cluster and that the agent repaired.
package driftrepairs

import (
	"strconv"
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/indexes"
)

// Kind of an object of the agent.
type Kind string

const (
	Link         Kind = "link"           // a link: it exists, is up, and has its name, group, MTU and flags
	Address      Kind = "address"        // an address of waggle_host
	Route        Kind = "route"          // a route with the agent's protocol
	Sysctl       Kind = "sysctl"         // a setting of the network namespace
	TCX          Kind = "tcx"            // the tcx link of a device of the agent, or the filter that replaces it
	CGroup       Kind = "cgroup"         // the link of a control group
	Clsact       Kind = "clsact"         // the clsact of a pod's link, or of the device that holds the shared blocks
	Filter       Kind = "filter"         // the filter of a shared block
	ProgramOrder Kind = "program-order"  // a program of another writer ran before the agent's
	NFTRule      Kind = "nft-rule"       // the agent's nftables table
	MapEntry     Kind = "map-entry"      // an entry of a pinned map
	Pin          Kind = "pin"            // a pin in the BPF file system
	Cilium       Kind = "ciliumendpoint" // an object of the agent in the cluster
	StateFile    Kind = "state-file"     // the state file of an endpoint
)

// Kinds are all kinds, in display order.
var Kinds = [...]Kind{Link, Address, Route, Sysctl, TCX, CGroup, Clsact, Filter, ProgramOrder, NFTRule, MapEntry, Pin, Cilium, StateFile}

// Others is the What of the row that counts objects that were removed from a full table.
const Others = "(others)"

// Repair is one object that the agent has repaired at least once since it started.
type Repair struct {
	Kind  Kind      `json:"kind"`
	What  string    `json:"what"`  // name of the object within its kind; all entries of one map are one object
	Count uint64    `json:"count"` // repairs since the agent started
	Last  time.Time `json:"last"`
	Found string    `json:"found"` // last difference
	// Row counts consecutive repairs with less than a minute between them; a high number indicates a repair loop with another writer.
	Row uint64 `json:"row"`
}

// Key identifies a row: "<kind>/<what>".
func (r Repair) Key() string { return string(r.Kind) + "/" + r.What }

// TableHeader implements statedb.TableWritable.
func (Repair) TableHeader() []string { return []string{"Kind", "What", "Count", "Found", "Last"} }

// TableRow implements statedb.TableWritable.
func (r Repair) TableRow() []string {
	return []string{string(r.Kind), r.What, strconv.FormatUint(r.Count, 10), r.Found, r.Last.UTC().Format(time.RFC3339)}
}

var keyIndex = indexes.Unique("key", indexes.String, Repair.Key)
var kindIndex = indexes.Shared("kind", indexes.String, func(r Repair) Kind { return r.Kind })

// Queries. ByKey takes "<kind>/<what>".
var (
	ByKey  = keyIndex.Query
	ByKind = kindIndex.Query
)

// NewTable makes the table "drift-repairs".
func NewTable(db *statedb.DB) (statedb.RWTable[Repair], error) {
	return statedb.NewTable(db, "drift-repairs", keyIndex, kindIndex)
}

// Finding is one difference between the kernel and the value that the agent had written.
type Finding struct {
	Kind  Kind
	What  string
	Found string // "missing", "down", "has program 17"
}

// Writer counts the findings of cells.
type Writer interface {
	// Record counts each finding and keeps the last one of each object. The caller repairs the object.
	Record(findings ...Finding)
}

// Package driftrepairs holds what somebody else changed of ours in the kernel and the agent put right.
package driftrepairs

import (
	"strconv"
	"time"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
)

// Kind of an object of ours.
type Kind string

const (
	Link         Kind = "link"           // a link: there, up, with its name, group, MTU and flags
	Address      Kind = "address"        // an address of waggle_host
	Route        Kind = "route"          // a route with our protocol
	Sysctl       Kind = "sysctl"         // a setting of the network namespace
	TCX          Kind = "tcx"            // the tcx link of a device of ours, or the filter in its place
	CGroup       Kind = "cgroup"         // the link of a control group
	Clsact       Kind = "clsact"         // the clsact of a pod's link, or of the device that holds the shared blocks
	Filter       Kind = "filter"         // the filter of a shared block
	ProgramOrder Kind = "program-order"  // somebody else's program ran ahead of ours
	NFTRule      Kind = "nft-rule"       // the nftables table of ours
	MapEntry     Kind = "map-entry"      // an entry of a pinned map
	Pin          Kind = "pin"            // a pin in the BPF file system
	Cilium       Kind = "ciliumendpoint" // an object of ours in the cluster
	StateFile    Kind = "state-file"     // the state file of an endpoint
)

// Kinds are all kinds, in the order in which they are shown.
var Kinds = [...]Kind{Link, Address, Route, Sysctl, TCX, CGroup, Clsact, Filter, ProgramOrder, NFTRule, MapEntry, Pin, Cilium, StateFile}

// Others is the What of the row that holds the counts of objects that were dropped from a full table.
const Others = "(others)"

// Repair is one object that was put right at least once since the agent started.
type Repair struct {
	Kind  Kind      `json:"kind"`
	What  string    `json:"what"`  // names the object among those of its kind; entries of one map are one object
	Count uint64    `json:"count"` // since the agent started
	Last  time.Time `json:"last"`
	Found string    `json:"found"` // what was wrong the last time
	// Row is how many of the repairs followed each other within a minute; a high number means that somebody is at it
	// all the time.
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

var keyIndex = statedb.Index[Repair, string]{
	Name:       "key",
	FromObject: func(r Repair) index.KeySet { return index.NewKeySet(index.String(r.Key())) },
	FromKey:    index.String,
	FromString: index.FromString,
	Unique:     true,
}

var kindIndex = statedb.Index[Repair, Kind]{
	Name:       "kind",
	FromObject: func(r Repair) index.KeySet { return index.NewKeySet(index.String(string(r.Kind))) },
	FromKey:    func(k Kind) index.Key { return index.String(string(k)) },
	FromString: index.FromString,
}

// Queries. ByKey takes "<kind>/<what>".
var (
	ByKey  = keyIndex.Query
	ByKind = kindIndex.Query
)

// NewTable makes the table "drift-repairs".
func NewTable(db *statedb.DB) (statedb.RWTable[Repair], error) {
	return statedb.NewTable(db, "drift-repairs", keyIndex, kindIndex)
}

// Finding is one difference between the kernel and what the agent had written there.
type Finding struct {
	Kind  Kind
	What  string
	Found string // "missing", "down", "has program 17"
}

// Writer counts what cells find.
type Writer interface {
	// Record counts each finding, and keeps the last of an object. The caller sees to the repair.
	Record(findings ...Finding)
}

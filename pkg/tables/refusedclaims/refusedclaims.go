// Package refusedclaims holds what objects of other nodes say and this node does not believe, summed up by reason.
package refusedclaims

import (
	"strconv"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
)

// Reason is why a claim is not believed.
type Reason string

const (
	UnknownNode  Reason = "unknown-node"  // no node, or another than the one that wrote the object, has the node's address
	OutsideCIDRs Reason = "outside-cidrs" // the pod's address is not in a range of its node
	NodeAddress  Reason = "node-address"  // the pod's address is a node's own
	LocalAddress Reason = "local-address" // an endpoint of this node has it
	Reserved     Reason = "reserved"      // no pod can have such an address
	Identity     Reason = "identity"      // the number is not one of the cluster's: the address counts as unknown
)

// Refused is one row.
type Refused struct {
	Reason  Reason `json:"reason"`
	Count   int    `json:"count"`   // addresses
	Example string `json:"example"` // one of them, with the object
}

// TableHeader implements statedb.TableWritable.
func (Refused) TableHeader() []string { return []string{"Reason", "Count", "Example"} }

// TableRow implements statedb.TableWritable.
func (r Refused) TableRow() []string {
	return []string{string(r.Reason), strconv.Itoa(r.Count), r.Example}
}

var reasonIndex = statedb.Index[Refused, string]{
	Name:       "reason",
	FromObject: func(r Refused) index.KeySet { return index.NewKeySet(index.String(string(r.Reason))) },
	FromKey:    index.String,
	FromString: index.FromString,
	Unique:     true,
}

// ByReason finds a row.
var ByReason = reasonIndex.Query

// NewTable makes the table "refused-claims".
func NewTable(db *statedb.DB) (statedb.RWTable[Refused], error) {
	return statedb.NewTable(db, "refused-claims", reasonIndex)
}

// Package refusedclaims holds claims of other nodes' objects that this node rejects, counted by reason.
package refusedclaims

import (
	"strconv"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/indexes"
)

// Reason says why a claim is rejected.
type Reason string

const (
	UnknownNode  Reason = "unknown-node"  // no node, or a node other than the writer of the object, has the node's address
	OutsideCIDRs Reason = "outside-cidrs" // the pod's address is not in a range of its node
	NodeAddress  Reason = "node-address"  // the pod's address is an address of a node
	LocalAddress Reason = "local-address" // an endpoint of this node has it
	Reserved     Reason = "reserved"      // no pod can have such an address
	Identity     Reason = "identity"      // the number is not a cluster-wide identity: the identity of the address counts as unknown
)

// Refused counts the rejected claims of one reason.
type Refused struct {
	Reason  Reason `json:"reason"`
	Count   int    `json:"count"`   // addresses
	Example string `json:"example"` // one of the addresses, with its object
}

// TableHeader implements statedb.TableWritable.
func (Refused) TableHeader() []string { return []string{"Reason", "Count", "Example"} }

// TableRow implements statedb.TableWritable.
func (r Refused) TableRow() []string {
	return []string{string(r.Reason), strconv.Itoa(r.Count), r.Example}
}

var reasonIndex = indexes.Unique("reason", indexes.String, func(r Refused) string { return string(r.Reason) })

// NewTable makes the table "refused-claims".
func NewTable(db *statedb.DB) (statedb.RWTable[Refused], error) {
	return statedb.NewTable(db, "refused-claims", reasonIndex)
}

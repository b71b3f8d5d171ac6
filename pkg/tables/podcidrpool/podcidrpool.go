// Package podcidrpool holds the pod CIDRs of all nodes that the cluster role allocates.
package podcidrpool

import (
	"strings"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/indexes"
)

// State of a row.
type State string

// States.
const (
	Given     State = "given"     // allocated to the node
	Pending   State = "pending"   // allocated, and being written
	Failed    State = "failed"    // the write failed and is repeated
	Exhausted State = "exhausted" // the pool has no subnet left
	Conflict  State = "conflict"  // overlaps the CIDR of another node
	Outside   State = "outside"   // not from the pool
	Invalid   State = "invalid"   // unreadable, or the node lists too many previous CIDRs; the cluster role does not change it
)

// CIDR is the pod CIDR of one family of one node.
type CIDR struct {
	Node   string `json:"node"`
	Family string `json:"family"` // "ipv4" or "ipv6"; "unknown" if the CIDRs are unreadable
	CIDR   string `json:"cidr"`   // as in the CiliumNode, separated by commas; empty without one
	State  State  `json:"state"`
	Reason string `json:"reason,omitempty"` // empty without a problem
}

// Key is "node/family".
func (c CIDR) Key() string { return c.Node + "/" + c.Family }

// TableHeader implements statedb.TableWritable.
func (CIDR) TableHeader() []string { return []string{"Node", "Family", "CIDR", "State", "Reason"} }

// TableRow implements statedb.TableWritable.
func (c CIDR) TableRow() []string {
	return []string{c.Node, c.Family, dash(c.CIDR), string(c.State), dash(c.Reason)}
}

func dash(s string) string {
	if strings.TrimSpace(s) == "" {
		return "-"
	}
	return s
}

var keyIndex = indexes.Unique("node", indexes.String, CIDR.Key)
var stateIndex = indexes.Shared("state", indexes.String, func(c CIDR) State { return c.State })

// NewTable makes the table "cluster-pool".
func NewTable(db *statedb.DB) (statedb.RWTable[CIDR], error) {
	return statedb.NewTable(db, "cluster-pool", keyIndex, stateIndex)
}

// Package podcidrpool holds the pod CIDRs of all nodes, as the cluster role gives them out.
package podcidrpool

import (
	"strings"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
)

// State of a row.
type State string

// States.
const (
	Given     State = "given"     // the node has it
	Pending   State = "pending"   // being written
	Failed    State = "failed"    // could not be written and is tried again
	Exhausted State = "exhausted" // the pool has no subnet left
	Conflict  State = "conflict"  // overlaps that of another node
	Outside   State = "outside"   // not from the pool
	Invalid   State = "invalid"   // cannot be read, or the node lists too many former ones; it is left alone
)

// CIDR is the pod CIDR of one family of one node.
type CIDR struct {
	Node   string `json:"node"`
	Family string `json:"family"` // "ipv4" or "ipv6"; "unknown" when CIDRs cannot be read
	CIDR   string `json:"cidr"`   // as in the CiliumNode; several are separated by commas; empty while there is none
	State  State  `json:"state"`
	Reason string `json:"reason,omitempty"` // for people; empty when all is well
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

var keyIndex = statedb.Index[CIDR, string]{
	Name:       "node",
	FromObject: func(c CIDR) index.KeySet { return index.NewKeySet(index.String(c.Key())) },
	FromKey:    index.String,
	FromString: index.FromString,
	Unique:     true,
}

var stateIndex = statedb.Index[CIDR, State]{
	Name:       "state",
	FromObject: func(c CIDR) index.KeySet { return index.NewKeySet(index.String(string(c.State))) },
	FromKey:    func(s State) index.Key { return index.String(string(s)) },
	FromString: index.FromString,
}

// Queries. ByNode takes "node/family".
var (
	ByNode  = keyIndex.Query
	ByState = stateIndex.Query
)

// NewTable makes the table "cluster-pool".
func NewTable(db *statedb.DB) (statedb.RWTable[CIDR], error) {
	return statedb.NewTable(db, "cluster-pool", keyIndex, stateIndex)
}

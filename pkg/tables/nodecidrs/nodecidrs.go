// Package nodecidrs holds every candidate for the pod CIDRs of this node, and why it was or was not chosen.
package nodecidrs

import (
	"net/netip"
	"strconv"
	"strings"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/indexes"
)

// Sources that are not a field or an annotation of the Node.
const (
	Flag    = "flag"    // --ipv4-range, --ipv6-range
	Kept    = "kept"    // chosen earlier in this run, but no source names a range any longer
	Derived = "derived" // derived from the node's own address if no other source is available or required
)

// Candidate is one CIDR for pods of this node.
type Candidate struct {
	Family string `json:"family"` // "ipv4", "ipv6", or "unknown" if Raw does not parse
	// Source: "flag", "spec.podCIDRs[0]", "spec.podCIDRs[1]", "spec.podCIDR", an annotation key, "kept", or "derived".
	Source string       `json:"source"`
	Raw    string       `json:"raw"`    // as written in the source
	Prefix netip.Prefix `json:"prefix"` // masked; invalid if Raw does not parse
	Chosen bool         `json:"chosen"` // true for at most one row of each family
	Reason string       `json:"reason"` // why the candidate was or was not chosen
}

// TableHeader implements statedb.TableWritable.
func (Candidate) TableHeader() []string {
	return []string{"Family", "Source", "CIDR", "Chosen", "Reason"}
}

// TableRow implements statedb.TableWritable.
func (c Candidate) TableRow() []string {
	return []string{c.Family, c.Source, c.Raw, strconv.FormatBool(c.Chosen), c.Reason}
}

var sourceIndex = indexes.Unique("source", indexes.String, func(c Candidate) string { return c.Family + "/" + c.Source })

var chosenIndex = indexes.OmitZero(indexes.Unique("chosen", indexes.String, func(c Candidate) string {
	if !c.Chosen {
		return ""
	}
	return c.Family
}))

// Queries. Chosen finds the chosen row of a family ("ipv4" or "ipv6"); BySource takes "<family>/<source>".
var (
	Chosen   = chosenIndex.Query
	BySource = sourceIndex.Query
)

// NewTable makes the table "node-cidrs".
func NewTable(db *statedb.DB) (statedb.RWTable[Candidate], error) {
	return statedb.NewTable(db, "node-cidrs", sourceIndex, chosenIndex)
}

// Waiting is the prefix of the reason of a derived candidate that cannot be chosen yet.
const Waiting = "waiting for "

// WaitingFor names the condition for choosing a range of a family. It uses the reason of the derived candidate, the last in order of preference.
func WaitingFor(txn statedb.ReadTxn, table statedb.Table[Candidate], family string) string {
	if c, _, ok := table.Get(txn, BySource(family+"/"+Derived)); ok && !c.Chosen {
		return strings.TrimPrefix(c.Reason, Waiting)
	}
	return "the choice of a pod CIDR"
}

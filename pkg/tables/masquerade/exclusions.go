package masquerade

import (
	"net/netip"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/pkg/indexes"
)

// Reasons for an exclusion. If several apply, the row has the first of these.
const (
	NativeRouting = "native routing CIDR" // --ipv4-native-routing-cidr, --ipv6-native-routing-cidr
	Excluded      = "excluded by flag"    // --masquerade-exclude-cidrs
	ByIPMasqAgent = "ip-masq-agent"       // --enable-ip-masq-agent
	OwnPods       = "pods of this node"
	OtherPods     = "pods of another node"
)

// Exclusion is a prefix of destinations that see pods under their own addresses.
type Exclusion struct {
	Prefix netip.Prefix      `json:"prefix"` // masked
	Reason string            `json:"reason"` // one of the constants
	Status reconciler.Status `json:"status"`
}

// Clone returns a copy that may be changed and inserted.
func (e *Exclusion) Clone() *Exclusion { c := *e; return &c }

// Equal compares the desired part.
func (e *Exclusion) Equal(o *Exclusion) bool { return e.Prefix == o.Prefix && e.Reason == o.Reason }

// GetStatus returns the status of the row.
func (e *Exclusion) GetStatus() reconciler.Status { return e.Status }

// WithStatus sets the status of a clone.
func (e *Exclusion) WithStatus(s reconciler.Status) *Exclusion { e.Status = s; return e }

// TableHeader implements statedb.TableWritable.
func (*Exclusion) TableHeader() []string { return []string{"Prefix", "Reason", "Status"} }

// TableRow implements statedb.TableWritable.
func (e *Exclusion) TableRow() []string {
	return []string{e.Prefix.String(), e.Reason, e.Status.Kind.String()}
}

var exclusionIndex = indexes.Unique("prefix", indexes.Prefix, func(e *Exclusion) netip.Prefix { return e.Prefix })

// ExclusionByPrefix finds an exclusion.
var ExclusionByPrefix = exclusionIndex.Query

// NewExclusionTable makes the table "unmasqueraded".
func NewExclusionTable(db *statedb.DB) (statedb.RWTable[*Exclusion], error) {
	return statedb.NewTable(db, "unmasqueraded", exclusionIndex)
}

package cilium

import (
	"maps"
	"net/netip"
	"slices"
	"strconv"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/indexes"
	"github.com/waggle-net/waggle/pkg/printable"
)

// CIDRGroup is a CiliumCIDRGroup: CIDRs to which policies refer by its name or its labels. Maps and slices are never changed in place.
type CIDRGroup struct {
	Name   string            `json:"name"`
	UID    string            `json:"uid,omitempty"`
	Labels map[string]string `json:"labels,omitempty"`
	CIDRs  []netip.Prefix    `json:"cidrs,omitempty"` // without host bits, in order, each once
	// Problems name the unreadable entries, which are not in CIDRs.
	Problems []string `json:"problems,omitempty"`
}

// Key is the name.
func (g *CIDRGroup) Key() string { return g.Name }

// Equal compares everything.
func (g *CIDRGroup) Equal(o *CIDRGroup) bool {
	return g.Name == o.Name && g.UID == o.UID && maps.Equal(g.Labels, o.Labels) && slices.Equal(g.CIDRs, o.CIDRs) && slices.Equal(g.Problems, o.Problems)
}

// TableHeader implements statedb.TableWritable.
func (*CIDRGroup) TableHeader() []string { return []string{"CIDRGroup", "CIDRs", "Labels"} }

// TableRow implements statedb.TableWritable.
func (g *CIDRGroup) TableRow() []string {
	return []string{g.Name, strconv.Itoa(len(g.CIDRs)), printable.Text(LabelsKey(g.Labels))}
}

var cidrGroupIndex = indexes.Unique("name", indexes.String, func(o *CIDRGroup) string { return o.Name })

// CIDRGroupByName finds a row.
var CIDRGroupByName = cidrGroupIndex.Query

// NewCIDRGroupTable makes the table "cilium-cidrgroups".
func NewCIDRGroupTable(db *statedb.DB) (statedb.RWTable[*CIDRGroup], error) {
	return statedb.NewTable(db, "cilium-cidrgroups", cidrGroupIndex)
}

// Package mtus holds the MTU of links and routes of pods.
package mtus

import (
	"net/netip"
	"strconv"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/indexes"
)

// MTU is one row. Currently there is only one, for both 0.0.0.0/0 and ::/0.
type MTU struct {
	Prefix    netip.Prefix `json:"prefix"`    // prefix to which the MTU applies; 0.0.0.0/0 is the default
	DeviceMTU int          `json:"deviceMTU"` // bytes, of pod links
	RouteMTU  int          `json:"routeMTU"`  // bytes, of the pods' default routes; smaller with a tunnel
	Source    string       `json:"source"`    // "flag", the name of the device whose MTU is used, or "default"
	// Provisional is true while the decisive device may not be known yet. New pods get the value, but running pods are not changed to it.
	Provisional bool `json:"provisional,omitempty"`
}

// TableHeader implements statedb.TableWritable.
func (MTU) TableHeader() []string {
	return []string{"Prefix", "DeviceMTU", "RouteMTU", "Source", "Provisional"}
}

// TableRow implements statedb.TableWritable.
func (m MTU) TableRow() []string {
	return []string{m.Prefix.String(), strconv.Itoa(m.DeviceMTU), strconv.Itoa(m.RouteMTU), m.Source, strconv.FormatBool(m.Provisional)}
}

var prefixIndex = indexes.Unique("prefix", indexes.Prefix, func(m MTU) netip.Prefix { return m.Prefix })

// Default is the prefix of the row that every pod uses.
var Default = netip.MustParsePrefix("0.0.0.0/0")

// ByPrefix finds one row.
var ByPrefix = prefixIndex.Query

// NewTable makes the table "mtus".
func NewTable(db *statedb.DB) (statedb.RWTable[MTU], error) {
	return statedb.NewTable(db, "mtus", prefixIndex)
}

// Package nodeaddresses holds the addresses of the node itself.
package nodeaddresses

import (
	"net/netip"
	"strconv"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
)

// Address is one address on one device.
type Address struct {
	Addr     netip.Addr `json:"addr"`
	Device   string     `json:"device"`   // interface name
	Scope    uint8      `json:"scope"`    // RT_SCOPE_*: 0 global, 253 link, 254 host
	Primary  bool       `json:"primary"`  // the node's address of this family; at most one
	NodePort bool       `json:"nodePort"` // NodePort services are reachable at this address
	// Source reports whether the node uses this address of the device and family as source for packets of others. Only devices that lead out have one,
	// at most one of each family.
	Source bool `json:"source"`
}

// TableHeader implements statedb.TableWritable.
func (Address) TableHeader() []string {
	return []string{"Address", "Device", "Scope", "Primary", "NodePort", "Source"}
}

// TableRow implements statedb.TableWritable.
func (a Address) TableRow() []string {
	return []string{a.Addr.String(), a.Device, strconv.Itoa(int(a.Scope)), strconv.FormatBool(a.Primary), strconv.FormatBool(a.NodePort),
		strconv.FormatBool(a.Source)}
}

var idIndex = statedb.Index[Address, string]{
	Name: "id",
	FromObject: func(a Address) index.KeySet {
		return index.NewKeySet(index.String(a.Addr.String() + "@" + a.Device))
	},
	FromKey:    index.String,
	FromString: index.FromString,
	Unique:     true,
}

var deviceIndex = statedb.Index[Address, string]{
	Name:       "device",
	FromObject: func(a Address) index.KeySet { return index.NewKeySet(index.String(a.Device)) },
	FromKey:    index.String,
	FromString: index.FromString,
}

// NewTable makes the table "node-addresses".
func NewTable(db *statedb.DB) (statedb.RWTable[Address], error) {
	return statedb.NewTable(db, "node-addresses", idIndex, deviceIndex)
}

// Package desireddevices holds the links that the agent wants in the node's network namespace.
package desireddevices

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/pkg/indexes"
)

// Device is one pair of links. The agent owns both ends.
type Device struct {
	Name string `json:"name"` // interface name of the end that carries addresses
	Peer string `json:"peer"` // interface name of the other end
	Up   bool   `json:"up"`   // both ends; false keeps both down
	MTU  int    `json:"mtu"`  // bytes, both ends; 0 leaves the MTU unchanged
	// Addresses are the addresses of Name. With AddressesKnown they are the complete set. Without it no address is removed, because after a restart the
	// kernel has addresses that the agent does not know yet.
	Addresses      []netip.Prefix    `json:"addresses"`
	AddressesKnown bool              `json:"addressesKnown"`
	Status         reconciler.Status `json:"status"`
}

// Clone returns a copy that may be changed and inserted. The addresses are shared and never changed in place.
func (d *Device) Clone() *Device { c := *d; return &c }

// Equal compares the desired part.
func (d *Device) Equal(o *Device) bool {
	return d.Name == o.Name && d.Peer == o.Peer && d.Up == o.Up && d.MTU == o.MTU &&
		d.AddressesKnown == o.AddressesKnown && slices.Equal(d.Addresses, o.Addresses)
}

// GetStatus returns the status of the row.
func (d *Device) GetStatus() reconciler.Status { return d.Status }

// WithStatus sets the status of a clone.
func (d *Device) WithStatus(s reconciler.Status) *Device { d.Status = s; return d }

// TableHeader implements statedb.TableWritable.
func (*Device) TableHeader() []string {
	return []string{"Name", "Peer", "Up", "MTU", "Addresses", "Status", "Error"}
}

// TableRow implements statedb.TableWritable.
func (d *Device) TableRow() []string {
	addrs := make([]string, len(d.Addresses))
	for i, a := range d.Addresses {
		addrs[i] = a.String()
	}
	list := strings.Join(addrs, ",")
	if list == "" {
		list = "-"
	}
	return []string{d.Name, d.Peer, strconv.FormatBool(d.Up), strconv.Itoa(d.MTU), list, d.Status.Kind.String(),
		d.Status.GetError()}
}

var nameIndex = indexes.Unique("name", indexes.String, func(d *Device) string { return d.Name })

// ByName finds one row by the name of its first end.
var ByName = nameIndex.Query

// NewTable makes the table "desired-devices".
func NewTable(db *statedb.DB) (statedb.RWTable[*Device], error) {
	return statedb.NewTable(db, "desired-devices", nameIndex)
}

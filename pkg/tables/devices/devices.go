// Package devices mirrors the links of the kernel.
package devices

import (
	"strconv"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/indexes"
	"github.com/waggle-net/waggle/pkg/mac"
)

// Device is one link in the agent's network namespace, as last reported by the kernel.
type Device struct {
	Index       int      `json:"index"`
	Name        string   `json:"name"`
	Type        string   `json:"type"` // "veth", "device", "bridge", ...
	MTU         int      `json:"mtu"`
	MAC         mac.Addr `json:"mac"`
	L3          bool     `json:"l3"`          // packets without a link header: IP tunnels, WireGuard, PPP
	Flags       uint32   `json:"flags"`       // IFF_*
	Up          bool     `json:"up"`          // administratively
	Group       uint32   `json:"group"`       // link group
	MasterIndex int      `json:"masterIndex"` // 0 when none
	ParentIndex int      `json:"parentIndex"` // peer of a veth, lower device of a VLAN; 0 when none
	// Selected means the device leads out of the node: it gets netdev programs. Reason says why or why not.
	Selected bool   `json:"selected"`
	Reason   string `json:"reason"`
}

// TableHeader implements statedb.TableWritable.
func (*Device) TableHeader() []string {
	return []string{"Index", "Name", "Type", "MTU", "MAC", "Up", "Selected", "Reason"}
}

// TableRow implements statedb.TableWritable.
func (d *Device) TableRow() []string {
	return []string{strconv.Itoa(d.Index), d.Name, d.Type, strconv.Itoa(d.MTU), d.MAC.String(),
		strconv.FormatBool(d.Up), strconv.FormatBool(d.Selected), d.Reason}
}

var indexIndex = indexes.Unique("id", indexes.Int, func(d *Device) int { return d.Index })

// The name index is not unique: while devices are renamed, two rows may briefly have the same name.
var nameIndex = indexes.Shared("name", indexes.String, func(d *Device) string { return d.Name })

// The index holds only the selected devices, which are few.
var selectedIndex = indexes.OmitZero(indexes.Shared("selected", indexes.Bool, func(d *Device) bool { return d.Selected }))

// Queries. BySelected takes true only.
var (
	ByIndex    = indexIndex.Query
	ByName     = nameIndex.Query
	BySelected = selectedIndex.Query
)

// NewTable makes the table "devices".
func NewTable(db *statedb.DB) (statedb.RWTable[*Device], error) {
	return statedb.NewTable(db, "devices", indexIndex, nameIndex, selectedIndex)
}

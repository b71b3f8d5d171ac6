// Package overlays holds the desired tunnel device: one row with --routing-mode=tunnel, none without.
package overlays

import (
	"net/netip"
	"strconv"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/pkg/column"
	"github.com/waggle-net/waggle/pkg/indexes"
	"github.com/waggle-net/waggle/pkg/mac"
)

// Overlay is a VXLAN device without addresses that takes the outer addresses from the metadata of each packet.
type Overlay struct {
	Device string     `json:"device"` // interface name
	Port   uint16     `json:"port"`   // UDP port, of this node and of all others
	MAC    mac.Addr   `json:"mac"`    // unique in the cluster: a frame with the receiver's MAC as inner source is lost
	MTU    int        `json:"mtu"`    // bytes; 0 leaves the MTU unchanged
	Source netip.Addr `json:"source"` // source of outer headers; invalid: the kernel's choice
	Second netip.Addr `json:"second"` // address of the other family, to which nodes with another --underlay-protocol send; invalid without one
	Way    int        `json:"way"`    // ifindex of waggle_host, the device of routes to pods of other nodes; 0 while it does not exist
	IPv4   netip.Addr `json:"ipv4"`   // source address of the node itself in the tunnel; invalid without one
	IPv6   netip.Addr `json:"ipv6"`   // likewise
	Up     bool       `json:"up"`     // false keeps a new device down, and does not change a device of a previous run
	// RouteMTU and HostMAC are for programs that encapsulate packets: the maximum length of inner packets in bytes (0 while unknown), and the MAC
	// address of waggle_host.
	RouteMTU int      `json:"routeMTU"`
	HostMAC  mac.Addr `json:"hostMAC"`
	// Checksums means that a pair of devices completes the checksums of packets to some nodes, and ChecksumsUp that the pair may be up; a pair that is
	// up stays up.
	Checksums   bool              `json:"checksums"`
	ChecksumsUp bool              `json:"checksumsUp"`
	Status      reconciler.Status `json:"status"`
}

// Clone returns a copy that may be changed and inserted.
func (o *Overlay) Clone() *Overlay { c := *o; return &c }

// Equal compares the desired part.
func (o *Overlay) Equal(p *Overlay) bool {
	a, b := *o, *p
	a.Status, b.Status = reconciler.Status{}, reconciler.Status{}
	return a == b
}

// GetStatus returns the status of the row.
func (o *Overlay) GetStatus() reconciler.Status { return o.Status }

// WithStatus sets the status of a clone.
func (o *Overlay) WithStatus(s reconciler.Status) *Overlay { o.Status = s; return o }

// TableHeader implements statedb.TableWritable.
func (*Overlay) TableHeader() []string {
	return []string{"Device", "Port", "MAC", "MTU", "Source", "Second", "IPv4", "IPv6", "Up", "Status", "Error"}
}

// TableRow implements statedb.TableWritable.
func (o *Overlay) TableRow() []string {
	return []string{o.Device, strconv.Itoa(int(o.Port)), o.MAC.String(), strconv.Itoa(o.MTU), column.Addr(o.Source), column.Addr(o.Second), column.Addr(o.IPv4), column.Addr(o.IPv6),
		strconv.FormatBool(o.Up), o.Status.Kind.String(), o.Status.GetError()}
}

var deviceIndex = indexes.Unique("device", indexes.String, func(o *Overlay) string { return o.Device })

// ByDevice finds a row by its interface name.
var ByDevice = deviceIndex.Query

// NewTable makes the table "overlays".
func NewTable(db *statedb.DB) (statedb.RWTable[*Overlay], error) {
	return statedb.NewTable(db, "overlays", deviceIndex)
}

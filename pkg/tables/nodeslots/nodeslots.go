// Package nodeslots defines the table of the node slots that programs read, by node id.
package nodeslots

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/pkg/column"
	"github.com/waggle-net/waggle/pkg/indexes"
	"github.com/waggle-net/waggle/pkg/printable"
)

// Slot is one row: a slot of the map nodes, and the entries of the map node_addrs that lead to it. Slices are never changed in place.
type Slot struct {
	ID       uint16       `json:"id"` // of the node; 0 is this node
	Node     string       `json:"node"`
	Direct   bool         `json:"direct"`           // routes of this node lead to its pods; otherwise they are reached through the tunnel
	Routed   bool         `json:"routed,omitempty"` // with a tunnel: the node may also send without it, as a node that receives no tunnel does
	Underlay netip.Addr   `json:"underlay"`         // destination of outer headers; invalid for this node and for a node that is not reached
	Source   netip.Addr   `json:"source"`           // source of outer headers to the node; same family as Underlay, invalid with it
	MTU      uint16       `json:"mtu,omitempty"`    // largest inner packet that the path carries, in bytes; 0 if it carries all sizes
	Addrs    []netip.Addr `json:"addrs,omitempty"`  // addresses of the node in the tunnel, at most one of each family
	// Checksums is the index of the device that completes the checksums of packets to the node before they enter the tunnel; 0 if devices of the
	// underlay may do it.
	Checksums uint32 `json:"checksums,omitempty"`

	Status reconciler.Status `json:"status"`
}

// Clone returns a copy that may be changed and inserted.
func (s *Slot) Clone() *Slot { c := *s; return &c }

// Equal compares the desired part.
func (s *Slot) Equal(o *Slot) bool {
	return s.ID == o.ID && s.Node == o.Node && s.Underlay == o.Underlay && s.Source == o.Source && s.MTU == o.MTU && s.Direct == o.Direct && s.Routed == o.Routed && s.Checksums == o.Checksums && slices.Equal(s.Addrs, o.Addrs)
}

// GetStatus returns the status of the row.
func (s *Slot) GetStatus() reconciler.Status { return s.Status }

// WithStatus sets the status of a clone.
func (s *Slot) WithStatus(status reconciler.Status) *Slot { s.Status = status; return s }

// TableHeader implements statedb.TableWritable.
func (*Slot) TableHeader() []string {
	return []string{"ID", "Node", "Mode", "Underlay", "Source", "MTU", "Checksums", "Addresses", "Status", "Error"}
}

// TableRow implements statedb.TableWritable.
func (s *Slot) TableRow() []string {
	addrs := make([]string, len(s.Addrs))
	for i, a := range s.Addrs {
		addrs[i] = a.String()
	}
	mtu := "-"
	if s.MTU > 0 {
		mtu = strconv.Itoa(int(s.MTU))
	}
	checksums := "-"
	if s.Checksums > 0 {
		checksums = "kernel"
	}
	return []string{strconv.Itoa(int(s.ID)), printable.Text(s.Node), cmp.Or(s.Mode(), "-"), column.Addr(s.Underlay), column.Addr(s.Source), mtu, checksums, strings.Join(addrs, ","),
		s.Status.Kind.String(), s.Status.GetError()}
}

// Mode returns the path of packets to the pods of the node: "direct" or "tunnel"; "" without a path, and for this node.
func (s *Slot) Mode() string {
	switch {
	case s.Direct:
		return "direct"
	case s.Underlay.IsValid():
		return "tunnel"
	}
	return ""
}

var idIndex = indexes.Unique("id", indexes.Uint16, func(s *Slot) uint16 { return s.ID })

// ByID finds the row of a node.
var ByID = idIndex.Query

// NewTable makes the table "node-slots".
func NewTable(db *statedb.DB) (statedb.RWTable[*Slot], error) {
	return statedb.NewTable(db, "node-slots", idIndex)
}

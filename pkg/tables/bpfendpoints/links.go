package bpfendpoints

import (
	"net/netip"
	"strconv"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/pkg/indexes"
)

// Link maps a host interface to its endpoint: one entry of the map bpf-links.
type Link struct {
	IfIndex uint32            `json:"ifIndex"`
	ID      uint16            `json:"id"` // local endpoint id
	Status  reconciler.Status `json:"status"`
}

// Clone returns a copy that may be changed and inserted.
func (l *Link) Clone() *Link { c := *l; return &c }

// Equal compares the desired part.
func (l *Link) Equal(o *Link) bool { return l.IfIndex == o.IfIndex && l.ID == o.ID }

// GetStatus returns the status of the row.
func (l *Link) GetStatus() reconciler.Status { return l.Status }

// WithStatus sets the status of a clone.
func (l *Link) WithStatus(s reconciler.Status) *Link { l.Status = s; return l }

// TableHeader implements statedb.TableWritable.
func (*Link) TableHeader() []string { return []string{"IfIndex", "ID", "Status"} }

// TableRow implements statedb.TableWritable.
func (l *Link) TableRow() []string {
	return []string{u32(l.IfIndex), strconv.Itoa(int(l.ID)), l.Status.Kind.String()}
}

var linkIndex = indexes.Unique("ifindex", indexes.Uint32, func(l *Link) uint32 { return l.IfIndex })

// LinkByIfIndex finds the row of one host interface.
var LinkByIfIndex = linkIndex.Query

// NewLinkTable makes the table "bpf-links".
func NewLinkTable(db *statedb.DB) (statedb.RWTable[*Link], error) {
	return statedb.NewTable(db, "bpf-links", linkIndex)
}

// Address maps an address of this node to its endpoint or to the host: one entry of the map bpf-endpoints.
type Address struct {
	Addr   netip.Addr        `json:"addr"`
	ID     uint16            `json:"id"`    // local endpoint id; 0 when Host
	Host   bool              `json:"host"`  // the node itself has the address
	Owner  string            `json:"owner"` // "endpoint" or the name of the writer
	Status reconciler.Status `json:"status"`
}

// Clone returns a copy that may be changed and inserted.
func (a *Address) Clone() *Address { c := *a; return &c }

// Equal compares the desired part.
func (a *Address) Equal(o *Address) bool {
	return a.Addr == o.Addr && a.ID == o.ID && a.Host == o.Host && a.Owner == o.Owner
}

// GetStatus returns the status of the row.
func (a *Address) GetStatus() reconciler.Status { return a.Status }

// WithStatus sets the status of a clone.
func (a *Address) WithStatus(s reconciler.Status) *Address { a.Status = s; return a }

// TableHeader implements statedb.TableWritable.
func (*Address) TableHeader() []string { return []string{"Address", "ID", "Host", "Owner", "Status"} }

// TableRow implements statedb.TableWritable.
func (a *Address) TableRow() []string {
	return []string{a.Addr.String(), strconv.Itoa(int(a.ID)), strconv.FormatBool(a.Host), a.Owner, a.Status.Kind.String()}
}

var addressIndex = indexes.Unique("addr", indexes.Addr, func(a *Address) netip.Addr { return a.Addr })
var ownerIndex = indexes.Shared("owner", indexes.String, func(a *Address) string { return a.Owner })

// Queries of addresses.
var (
	AddressByAddr  = addressIndex.Query
	AddressByOwner = ownerIndex.Query
)

// NewAddressTable makes the table "bpf-endpoints".
func NewAddressTable(db *statedb.DB) (statedb.RWTable[*Address], error) {
	return statedb.NewTable(db, "bpf-endpoints", addressIndex, ownerIndex)
}

// HostInitializer is the initializer of "bpf-endpoints" that waits for the first set of host addresses.
const HostInitializer = "host-addresses"

// HostWriter adds addresses of the node itself. Each owner has its own set.
type HostWriter interface {
	// ReplaceHost makes addrs the complete set of owner, in one commit. Rows of endpoints and of other owners stay; an address of an endpoint is
	// omitted and named in the error.
	ReplaceHost(owner string, addrs []netip.Addr) error
}

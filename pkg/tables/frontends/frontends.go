// Package frontends holds the addresses of services with their backends and their state in the datapath.
package frontends

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/pkg/loadbalancer"
	"github.com/waggle-net/waggle/pkg/printable"
	"github.com/waggle-net/waggle/pkg/rootwatch"
)

// Kind is the origin of a frontend.
type Kind string

// Kinds, in order of precedence for an address that several objects claim.
const (
	ClusterIP    Kind = "ClusterIP"
	NodePort     Kind = "NodePort"
	HostPort     Kind = "HostPort"
	LoadBalancer Kind = "LoadBalancer"
	ExternalIP   Kind = "ExternalIPs"
)

// Frontend is one row. Slices are never changed in place. The order of the fields leaves no gaps, because there are tens of thousands of rows.
type Frontend struct {
	loadbalancer.Address
	ID       uint32 `json:"id"`                 // in the maps, never 0; kept over restarts
	Affinity uint32 `json:"affinity,omitempty"` // seconds; 0 for none

	TwoScopes bool `json:"twoScopes,omitempty"` // clients of this node use Internal
	Outside   bool `json:"outside,omitempty"`   // clients outside the cluster may use it
	Deny      bool `json:"deny,omitempty"`      // with Ranges: all sources except these
	Maglev    bool `json:"maglev,omitempty"`    // clients from outside use a Maglev table
	LocalOnly bool `json:"localOnly,omitempty"` // Backends are on this node only
	Loopback  bool `json:"loopback,omitempty"`  // for processes of this node only
	Drop      bool `json:"drop,omitempty"`      // without backends drop packets instead of rejecting them
	// InForce reports whether the datapath follows the row. Status may still hold an error that names a missing part, such as a Maglev table.
	InForce bool `json:"inForce,omitempty"`

	Kind     Kind   `json:"kind"`
	Service  string `json:"service"`            // name of the row in services that has the address
	PortName string `json:"portName,omitempty"` // of the service's port
	// Backends are the ids of the backends for new connections, ascending. With TwoScopes they serve only clients from outside, otherwise all clients.
	// Empty if there is none.
	Backends []uint32 `json:"backends"`
	// Internal are the backends for clients of this node, with TwoScopes.
	Internal []uint32       `json:"internal,omitempty"`
	Ranges   []netip.Prefix `json:"ranges,omitempty"` // restricts Outside to these sources; nil for all
	// Refused are the other services that claim the address, in order of precedence.
	Refused []string `json:"refused,omitempty"`

	Status reconciler.Status `json:"status"`
	// Applied counts the revisions of the row that the datapath has followed. It also grows while the row changes faster than the maps are written.
	Applied uint64 `json:"applied,omitempty"`
}

// Clone returns a copy that may be changed and inserted.
func (f *Frontend) Clone() *Frontend { c := *f; return &c }

// Equal compares the desired part.
func (f *Frontend) Equal(o *Frontend) bool {
	return f.Address == o.Address && f.ID == o.ID && f.Kind == o.Kind && f.Service == o.Service && f.PortName == o.PortName &&
		f.TwoScopes == o.TwoScopes && f.Outside == o.Outside && f.Affinity == o.Affinity && f.Maglev == o.Maglev &&
		f.LocalOnly == o.LocalOnly && f.Loopback == o.Loopback && f.Drop == o.Drop && f.Deny == o.Deny && (f.Ranges == nil) == (o.Ranges == nil) &&
		slices.Equal(f.Backends, o.Backends) && slices.Equal(f.Internal, o.Internal) && slices.Equal(f.Ranges, o.Ranges) &&
		slices.Equal(f.Refused, o.Refused)
}

// Admits reports whether the source ranges allow a client from outside the cluster.
func (f *Frontend) Admits(client netip.Addr) bool {
	return f.Ranges == nil || slices.ContainsFunc(f.Ranges, func(p netip.Prefix) bool { return p.Contains(client) }) != f.Deny
}

// GetStatus returns the status of the row.
func (f *Frontend) GetStatus() reconciler.Status { return f.Status }

// WithStatus sets the status of a clone.
func (f *Frontend) WithStatus(s reconciler.Status) *Frontend { f.Status = s; return f }

// TableHeader implements statedb.TableWritable.
func (*Frontend) TableHeader() []string {
	return []string{"Address", "ID", "Kind", "Service", "Port", "Backends", "Internal", "Refused", "Status"}
}

// TableRow implements statedb.TableWritable.
func (f *Frontend) TableRow() []string {
	internal := "-"
	if f.TwoScopes {
		internal = ids(f.Internal)
	}
	return []string{f.Address.String(), strconv.FormatUint(uint64(f.ID), 10), string(f.Kind), printable.Text(f.Service),
		printable.Text(cmp.Or(f.PortName, "-")), ids(f.Backends), internal, printable.Text(cmp.Or(strings.Join(f.Refused, ","), "-")),
		f.Status.Kind.String()}
}

func ids(list []uint32) string {
	texts := make([]string, len(list))
	for i, id := range list {
		texts[i] = strconv.FormatUint(uint64(id), 10)
	}
	return cmp.Or(strings.Join(texts, ","), "-")
}

var addressIndex = statedb.Index[*Frontend, loadbalancer.Address]{
	Name:       "address",
	FromObject: func(f *Frontend) index.KeySet { return index.NewKeySet(f.Address.Key()) },
	FromKey:    loadbalancer.Address.Key,
	FromString: func(text string) (index.Key, error) {
		a, err := loadbalancer.ParseAddress(text)
		return a.Key(), err
	},
	Unique: true,
}

// ByAddress finds a frontend. The claims of a service lead to its frontends.
var ByAddress = addressIndex.Query

// FirstInitializer is the initializer of "frontends" that waits for the rows known at the start, from the API server or from the copy on disk. The
// table is complete only after the API server has listed its objects.
const FirstInitializer = "first-pass"

// NewTable makes the table "frontends". It has only one index: with tens of thousands of rows, another index would take as much memory as half of the rows. A
// watch channel of a query closes after any change of the table, because channels of single rows would take more than 0.1 kB for each row.
func NewTable(db *statedb.DB) (statedb.RWTable[*Frontend], error) {
	table, err := statedb.NewTable(db, "frontends", addressIndex)
	if err != nil {
		return nil, err
	}
	return table, rootwatch.Only(db, table)
}

// Statuses is the table for the cell that writes the rows to the datapath. That cell sets statuses and changes nothing else.
type Statuses struct{ Table statedb.RWTable[*Frontend] }

// NewStatuses wraps the table.
func NewStatuses(table statedb.RWTable[*Frontend]) Statuses { return Statuses{table} }

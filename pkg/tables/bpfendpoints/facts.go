// Package bpfendpoints holds the desired contents of the three maps that tell the datapath about endpoints:
// endpoint_facts (by local id), bpf-links (by ifindex) and bpf-endpoints (by address).
package bpfendpoints

import (
	"net/netip"
	"strconv"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/pkg/column"
	"github.com/waggle-net/waggle/pkg/indexes"
	"github.com/waggle-net/waggle/pkg/mac"
	"github.com/waggle-net/waggle/pkg/tables/endpointpolicies"
)

// Facts are the endpoint properties that the programs read: one slot of the array endpoint_facts.
type Facts struct {
	ID             uint16                    `json:"id"`
	IfIndex        uint32                    `json:"ifIndex"` // host end of the pod's link
	PodMAC         mac.Addr                  `json:"podMAC"`
	HostMAC        mac.Addr                  `json:"hostMAC"`
	IPv4           netip.Addr                `json:"ipv4"` // invalid when the pod has none
	IPv6           netip.Addr                `json:"ipv6"`
	GatewayIPv4    netip.Addr                `json:"gatewayIPv4"` // for which the programs answer ARP
	GatewayIPv6    netip.Addr                `json:"gatewayIPv6"` // and neighbour solicitations
	Identity       uint32                    `json:"identity"`
	Ingress        endpointpolicies.Decision `json:"ingress"`
	Egress         endpointpolicies.Decision `json:"egress"`
	PolicyRevision uint32                    `json:"policyRevision"` // see [endpointpolicies.EndpointPolicy]
	Status         reconciler.Status         `json:"status"`
}

// Clone returns a copy that may be changed and inserted.
func (f *Facts) Clone() *Facts { c := *f; return &c }

// Equal compares the desired part.
func (f *Facts) Equal(o *Facts) bool {
	a, b := *f, *o
	a.Status, b.Status = reconciler.Status{}, reconciler.Status{}
	return a == b
}

// GetStatus returns the status of the row.
func (f *Facts) GetStatus() reconciler.Status { return f.Status }

// WithStatus sets the status of a clone.
func (f *Facts) WithStatus(s reconciler.Status) *Facts { f.Status = s; return f }

// TableHeader implements statedb.TableWritable.
func (*Facts) TableHeader() []string {
	return []string{"ID", "IfIndex", "IPv4", "IPv6", "PodMAC", "Identity", "Ingress", "Egress", "Status"}
}

// TableRow implements statedb.TableWritable.
func (f *Facts) TableRow() []string {
	return []string{strconv.Itoa(int(f.ID)), u32(f.IfIndex), column.Addr(f.IPv4), column.Addr(f.IPv6), f.PodMAC.String(),
		u32(f.Identity), u32(f.Ingress.Enforced.ID), u32(f.Egress.Enforced.ID), f.Status.Kind.String()}
}

func u32(v uint32) string { return strconv.FormatUint(uint64(v), 10) }

var factsIndex = indexes.Unique("id", indexes.Uint16, func(f *Facts) uint16 { return f.ID })

// FactsByID finds the facts of one endpoint.
var FactsByID = factsIndex.Query

// NewFactsTable makes the table "endpoint-facts".
func NewFactsTable(db *statedb.DB) (statedb.RWTable[*Facts], error) {
	return statedb.NewTable(db, "endpoint-facts", factsIndex)
}

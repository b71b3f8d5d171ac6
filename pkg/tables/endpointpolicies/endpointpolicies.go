// Package endpointpolicies holds the policies and the published identity of each endpoint. A row is written when the entries of all policies are in the
// maps, including the entries in other endpoints' policies for this endpoint's identity. So an endpoint whose facts follow its row never has a
// partially written policy.
package endpointpolicies

import (
	"cmp"
	"strconv"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/indexes"
	"github.com/waggle-net/waggle/pkg/printable"
)

// Policy is a compiled policy in the map: its number and its classes of keys.
type Policy struct {
	ID    uint32 `json:"id"`    // 0 drops everything, 1 allows everything
	Shape uint32 `json:"shape"` // see bpf/lib/policy.h; only these classes are looked up
}

// Decision is the policy of one direction.
type Decision struct {
	Enforced Policy `json:"enforced"`
	// Audited is the policy that would be enforced if policies in audit mode counted; its ID is 0 without one.
	Audited  Policy `json:"audited,omitzero"`
	Isolated bool   `json:"isolated,omitempty"` // a policy, or the mode, sets the endpoint to default deny
}

// EndpointPolicy is one row.
type EndpointPolicy struct {
	EndpointID uint16   `json:"endpointID"`
	Attachment string   `json:"attachment"` // distinguishes an endpoint from a later one with the same id
	Identity   uint32   `json:"identity"`   // identity that other endpoints and nodes may use from now on
	Ingress    Decision `json:"ingress"`
	Egress     Decision `json:"egress"`
	// Error says why the endpoint does not have all its desired policies. In each direction it then keeps the previous one, or has ID 0. Empty without an error.
	Error string `json:"error,omitempty"`
	// Revision rises when the verdicts of the endpoint's policies on established connections may have changed. The datapath then evaluates each
	// connection again.
	Revision uint32 `json:"revision"`
}

// Equal compares everything.
func (e *EndpointPolicy) Equal(o *EndpointPolicy) bool { return *e == *o }

// TableHeader implements statedb.TableWritable.
func (*EndpointPolicy) TableHeader() []string {
	return []string{"Endpoint", "Attachment", "Identity", "Ingress", "Egress", "Revision", "Error"}
}

// TableRow implements statedb.TableWritable.
func (e *EndpointPolicy) TableRow() []string {
	u := func(v uint32) string { return strconv.FormatUint(uint64(v), 10) }
	return []string{strconv.Itoa(int(e.EndpointID)), e.Attachment, u(e.Identity), u(e.Ingress.Enforced.ID), u(e.Egress.Enforced.ID),
		u(e.Revision), printable.Text(cmp.Or(e.Error, "-"))}
}

var endpointIndex = indexes.Unique("endpoint", indexes.Uint16, func(e *EndpointPolicy) uint16 { return e.EndpointID })

// ByEndpoint finds the policy of an endpoint by its local id.
var ByEndpoint = endpointIndex.Query

// NewTable makes the table "endpoint-policies".
func NewTable(db *statedb.DB) (statedb.RWTable[*EndpointPolicy], error) {
	return statedb.NewTable(db, "endpoint-policies", endpointIndex)
}

// Of finds the policy of one attachment. It ignores a row of an earlier endpoint with the same id.
func Of(txn statedb.ReadTxn, table statedb.Table[*EndpointPolicy], id uint16, attachment string) (*EndpointPolicy, bool) {
	row, _, found := table.Get(txn, ByEndpoint(id))
	if !found || row.Attachment != attachment {
		return nil, false
	}
	return row, true
}

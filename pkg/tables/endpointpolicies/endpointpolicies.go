// Package endpointpolicies holds which policy each endpoint has, and as whom others know it. A row says what the kernel is
// ready for: it is written when the entries of all policies are in the maps, those of other endpoints about this one's
// identity included. So an endpoint whose facts follow its row never meets half a policy.
package endpointpolicies

import (
	"cmp"
	"strconv"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"

	"github.com/waggle-net/waggle/pkg/printable"
)

// Policy is a compiled policy in the map: its number, and the classes of keys that it has.
type Policy struct {
	ID    uint32 `json:"id"`    // 0 drops everything, 1 allows everything
	Shape uint32 `json:"shape"` // see bpf/policy.h; only these classes are looked up
}

// Decision is what holds for one direction.
type Decision struct {
	Enforced Policy `json:"enforced"`
	// Audited is what would hold if policies in audit mode counted; its ID is 0 when there is none.
	Audited  Policy `json:"audited,omitzero"`
	Isolated bool   `json:"isolated,omitempty"` // a policy, or the mode, sets the endpoint to default deny
}

// EndpointPolicy is one row.
type EndpointPolicy struct {
	EndpointID uint16   `json:"endpointID"`
	Attachment string   `json:"attachment"` // tells an endpoint from a later one with the same id
	Identity   uint32   `json:"identity"`   // as whom everybody may know it from now on
	Ingress    Decision `json:"ingress"`
	Egress     Decision `json:"egress"`
	// Error says why the endpoint does not have the policies that it should: it goes on with those that it had, and with
	// none everything is dropped. Empty when all is well.
	Error string `json:"error,omitempty"`
	// Revision rises whenever what the endpoint's policies say of established connections may have changed. It reaches the
	// datapath, which judges each connection again.
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

var endpointIndex = statedb.Index[*EndpointPolicy, uint16]{
	Name:       "endpoint",
	FromObject: func(e *EndpointPolicy) index.KeySet { return index.NewKeySet(index.Uint16(e.EndpointID)) },
	FromKey:    index.Uint16,
	FromString: index.Uint16String,
	Unique:     true,
}

// ByEndpoint finds the policy of an endpoint by its local id.
var ByEndpoint = endpointIndex.Query

// NewTable makes the table "endpoint-policies".
func NewTable(db *statedb.DB) (statedb.RWTable[*EndpointPolicy], error) {
	return statedb.NewTable(db, "endpoint-policies", endpointIndex)
}

// Of finds the policy of one attachment; a row of an earlier endpoint with the same id is not it.
func Of(txn statedb.ReadTxn, table statedb.Table[*EndpointPolicy], id uint16, attachment string) (*EndpointPolicy, bool) {
	row, _, found := table.Get(txn, ByEndpoint(id))
	if !found || row.Attachment != attachment {
		return nil, false
	}
	return row, true
}

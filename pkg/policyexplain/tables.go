package policyexplain

import (
	"net/netip"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/policy/policyenvironment"
	"github.com/waggle-net/waggle/pkg/tables/backends"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/endpointpolicies"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/frontends"
	"github.com/waggle-net/waggle/pkg/tables/identities"
	"github.com/waggle-net/waggle/pkg/tables/ipcache"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/namedcidrs"
	"github.com/waggle-net/waggle/pkg/tables/policies"
	"github.com/waggle-net/waggle/pkg/tables/policyclasses"
	"github.com/waggle-net/waggle/pkg/tables/policyentries"
)

// Tables are the inputs of a [View].
type Tables struct {
	cell.In

	DB               *statedb.DB
	Options          policy.Options
	Policies         statedb.Table[*policies.Policy]
	Entries          statedb.Table[*policyentries.Policy]
	EndpointPolicies statedb.Table[*endpointpolicies.EndpointPolicy]
	NamedCIDRs       statedb.Table[*namedcidrs.CIDR]
	Classes          statedb.Table[*policyclasses.Class]
	Endpoints        statedb.Table[*endpoints.Endpoint]
	Identities       statedb.Table[*identities.Identity]
	IPCache          statedb.Table[*ipcache.Entry]
	Pods             statedb.Table[*k8s.Pod]
	CiliumEndpoints  statedb.Table[*cilium.Endpoint]
	CiliumPolicies   statedb.Table[*cilium.Policy]
	Frontends        statedb.Table[*frontends.Frontend]
	Backends         statedb.Table[*backends.Backend]
	Environment      policyenvironment.Inputs
}

// View answers from one snapshot. It is not safe for concurrent use.
type View struct {
	*Tables
	txn       statedb.ReadTxn
	policies  []*policy.Policy
	rules     map[ruleName]*policy.Rule         // nil until first use
	summaries map[uint32]summary                // by policy id, filled on first use
	pods      map[string][]*identities.Identity // identities of pods by namespace, and all of them under the empty name; nil until first use
	remote    map[netip.Addr]*cilium.Endpoint   // pods on other nodes by address; nil until [View.indexPods]
}

// View returns a view of a new snapshot.
func (t *Tables) View() *View { return t.At(t.DB.ReadTxn()) }

// At returns a view of an existing snapshot.
func (t *Tables) At(txn statedb.ReadTxn) *View {
	v := &View{Tables: t, txn: txn}
	for p := range t.Policies.All(txn) {
		v.policies = append(v.policies, p.Policy)
	}
	return v
}

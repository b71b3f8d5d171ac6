package policyview

import (
	"net/netip"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/policyenvironment"
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

// Tables are what answers are made of.
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

// View answers from one snapshot. It is for one goroutine.
type View struct {
	*Tables
	txn       statedb.ReadTxn
	policies  []*policy.Policy
	rules     map[ruleName]*policy.Rule         // nil until somebody asks
	summaries map[uint32]summary                // by policy id, as they were asked for
	pods      map[string][]*identities.Identity // of a namespace, by its name, and of all by the empty name; nil until a class is asked for
	remote    map[netip.Addr]*cilium.Endpoint   // pods elsewhere by address; nil until somebody asks often
}

// View takes a snapshot.
func (t *Tables) View() *View { return t.At(t.DB.ReadTxn()) }

// At answers from a snapshot that is there already.
func (t *Tables) At(txn statedb.ReadTxn) *View {
	v := &View{Tables: t, txn: txn}
	for p := range t.Policies.All(txn) {
		v.policies = append(v.policies, p.Policy)
	}
	return v
}

// Package policyenvironment reads the [policy.Environment] of a node from its tables, for all readers of policies on the node.
package policyenvironment

import (
	"iter"
	"net/netip"
	"slices"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/clusternodes"
	"github.com/waggle-net/waggle/pkg/labels"
	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/nodeaddresses"
	"github.com/waggle-net/waggle/pkg/tables/sources"
)

// Inputs are the sources of a [policy.Environment].
type Inputs struct {
	cell.In

	Agent         agentconfig.Agent
	Options       policy.Options
	Filter        *labels.Filter
	Slices        statedb.Table[*k8s.EndpointSlice]
	NodeAddresses statedb.Table[nodeaddresses.Address]
	CIDRGroups    statedb.Table[*cilium.CIDRGroup]
	Services      statedb.Table[*k8s.Service]
	Sources       statedb.Table[sources.Source]
}

// Groups returns the CiliumCIDRGroups of a snapshot.
func (in *Inputs) Groups(txn statedb.ReadTxn) policy.CIDRGroups {
	groups := policy.CIDRGroups{}
	for g := range in.CIDRGroups.All(txn) {
		groups[g.Name] = g
	}
	return groups
}

// Service returns the meaning of a Service in a snapshot.
func (in *Inputs) Service(txn statedb.ReadTxn, name policy.ServiceName) policy.Service {
	row, _, _ := in.Services.Get(txn, k8s.ServiceByName(name.String()))
	return policy.ServiceOf(row).WithAddresses(in.SlicesOf(txn, name))
}

// SlicesOf yields the EndpointSlices of a Service.
func (in *Inputs) SlicesOf(txn statedb.ReadTxn, name policy.ServiceName) iter.Seq[*k8s.EndpointSlice] {
	return func(yield func(*k8s.EndpointSlice) bool) {
		for slice := range in.Slices.List(txn, k8s.EndpointSlicesByService(name.String())) {
			if !yield(slice) {
				return
			}
		}
	}
}

// ServicesIn yields the names of the Services in a namespace, sorted, and their labels.
func (in *Inputs) ServicesIn(txn statedb.ReadTxn, namespace string) iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for row := range in.Services.Prefix(txn, k8s.ServiceByName(namespace+"/")) {
			if !yield(row.Name, row.Labelled) {
				return
			}
		}
	}
}

// Read returns the environment of a snapshot, and adds to changed the channels that close when the API servers may have changed. It omits the groups, of
// which there may be many. A change of a Service or of its EndpointSlices closes no channel. The functions Services and ServicesIn of the environment hold the
// snapshot.
func (in *Inputs) Read(txn statedb.ReadTxn, changed *statedb.WatchSet) policy.Environment {
	env := policy.Environment{Cluster: in.Agent.ClusterName, Keeps: in.Filter.Keeps, AllowL7Ports: in.Options.L7Rules == policy.AllowL7Ports,
		IPv4Only: !in.Agent.EnableIPv6, IPv6Only: !in.Agent.EnableIPv4}
	groups, _, _ := in.Sources.Get(txn, sources.ByTable(in.CIDRGroups.Name()))
	env.GroupsUnread = !groups.Usable()
	services, _, _ := in.Sources.Get(txn, sources.ByTable(in.Services.Name()))
	env.ServicesUnread = !services.Usable()
	slicesOfServices, _, _ := in.Sources.Get(txn, sources.ByTable(in.Slices.Name()))
	env.SlicesUnread = !slicesOfServices.Usable()
	env.Services = func(name policy.ServiceName) policy.Service { return in.Service(txn, name) }
	env.ServicesIn = func(namespace string) iter.Seq2[string, string] { return in.ServicesIn(txn, namespace) }
	servers, more := clusternodes.APIServers(txn, in.Slices)
	ours, moreOurs := in.NodeAddresses.AllWatch(txn)
	changed.Add(more, moreOurs)
	for a := range ours {
		if i, found := slices.BinarySearchFunc(servers, a.Addr, netip.Addr.Compare); found {
			servers = slices.Delete(servers, i, i+1)
			env.APIServerHere = true
		}
	}
	env.APIServers = servers
	return env
}

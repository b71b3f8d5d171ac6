package ctgc

import (
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/backendcheck"
	"github.com/waggle-net/waggle/pkg/tables/conntrack"
	"github.com/waggle-net/waggle/pkg/tables/devices"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/ipamaddresses"
	"github.com/waggle-net/waggle/pkg/tables/masquerade"
	"github.com/waggle-net/waggle/pkg/tables/natusage"
	"github.com/waggle-net/waggle/pkg/tables/nodeaddresses"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/tables/nodetraffic"
)

// access holds the kernel, the tables and the locked state that the jobs and commands of the cell share. The state of a single job is in the type of that job.
type access struct {
	kernel kernel
	nat    natKernel
	db     *statedb.DB

	// Inputs.
	endpoints  statedb.Table[*endpoints.Endpoint]
	addresses  statedb.Table[ipamaddresses.Address]
	nodes      statedb.Table[nodeaddresses.Address]
	devices    statedb.Table[devices.Address]
	exclusions statedb.Table[*masquerade.Exclusion]
	cluster    statedb.Table[*nodes.Node]
	grace      grace
	agent      agentconfig.Agent
	percent    int // of the translated flows: the quota of one endpoint

	// Status.
	table   statedb.RWTable[conntrack.Map]
	usage   statedb.RWTable[natusage.Usage]
	replied statedb.RWTable[*nodetraffic.Traffic]

	// State that jobs share. Each has its own lock.
	served  *served
	signals signalState
}

type params struct {
	cell.In

	Settings   agentconfig.Agent
	Kernel     kernel
	Nat        natKernel
	DB         *statedb.DB
	Table      statedb.RWTable[conntrack.Map]
	Usage      statedb.RWTable[natusage.Usage]
	Endpoints  statedb.Table[*endpoints.Endpoint]
	Addresses  statedb.Table[ipamaddresses.Address]
	Nodes      statedb.Table[nodeaddresses.Address]
	Devices    statedb.Table[devices.Address]
	Cluster    statedb.Table[*nodes.Node]
	Traffic    statedb.RWTable[*nodetraffic.Traffic]
	Grace      grace
	Exclusions statedb.Table[*masquerade.Exclusion]
	Serving    backendcheck.Tables
}

func newAccess(p params) *access {
	return &access{kernel: p.Kernel, nat: p.Nat, db: p.DB, endpoints: p.Endpoints, addresses: p.Addresses, nodes: p.Nodes, devices: p.Devices,
		exclusions: p.Exclusions, cluster: p.Cluster, grace: p.Grace, agent: p.Settings, percent: p.Settings.EndpointShare,
		table: p.Table, usage: p.Usage, replied: p.Traffic, served: &served{tables: p.Serving}, signals: signalState{wake: make(chan struct{}, 1)}}
}

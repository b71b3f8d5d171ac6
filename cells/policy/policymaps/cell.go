package policymaps

import (
	"log/slog"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/drift"
	"github.com/waggle-net/waggle/pkg/policy/policyenvironment"
	"github.com/waggle-net/waggle/pkg/tables/attachments"
	"github.com/waggle-net/waggle/pkg/tables/bpfendpoints"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/endpointpolicies"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/identities"
	"github.com/waggle-net/waggle/pkg/tables/ipcache"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/namedcidrs"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/tables/policies"
	"github.com/waggle-net/waggle/pkg/tables/policyclasses"
	"github.com/waggle-net/waggle/pkg/tables/policyentries"
	"github.com/waggle-net/waggle/pkg/tables/policyprogress"
	"github.com/waggle-net/waggle/pkg/tables/sources"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// Cell compiles network policies into entries of BPF maps.
var Cell = cell.Module("policy", "Network policies as entries of BPF maps",
	cell.ProvidePrivate(newKernel), // the real maps; tests provide fakes
	implementation,
)

// implementation is the cell without the real maps.
var implementation = cell.Group(
	cell.Config(DefaultConfig),
	cell.ProvidePrivate( // only this cell writes
		policies.NewTable,
		policyentries.NewTable,
		namedcidrs.NewTable,
		endpointpolicies.NewTable,
		policyclasses.NewTable,
		policyprogress.NewTable,
		newInitialize,
		newLoops,
	),
	cell.Provide( // read by other cells
		statedb.RWTable[*policies.Policy].ToTable,
		statedb.RWTable[*policyentries.Policy].ToTable,
		statedb.RWTable[*namedcidrs.CIDR].ToTable,
		statedb.RWTable[*endpointpolicies.EndpointPolicy].ToTable,
		statedb.RWTable[*policyclasses.Class].ToTable,
		statedb.RWTable[policyprogress.Progress].ToTable,
		newOptions, // options of policies on this node
		commands,
	),
	cell.Invoke(
		register, // writes policies to the maps, and marks rows with drift pending
	),
)

type params struct {
	cell.In

	Log     *slog.Logger
	DB      *statedb.DB
	Config  Config
	Drift   drift.Watch
	Entries entryMaps
	CIDRs   cidrMap
	Numbers identityMap
	Classes classMap

	policyenvironment.Inputs
	KubernetesPolicies statedb.Table[*k8s.NetworkPolicy]
	CiliumPolicies     statedb.Table[*cilium.Policy]
	Namespaces         statedb.Table[*k8s.Namespace]
	Pods               statedb.Table[*k8s.Pod]
	Remote             statedb.Table[*cilium.Endpoint]
	IPCache            statedb.Table[*ipcache.Entry]
	KubernetesNodes    statedb.Table[*k8s.Node]
	CiliumNodes        statedb.Table[*cilium.Node]
	Nodes              statedb.Table[*nodes.Node]
	CiliumIdentities   statedb.Table[*cilium.Identity]
	Sources            statedb.Table[sources.Source]
	Identities         statedb.Table[*identities.Identity]
	Of                 statedb.Table[*identities.EndpointIdentity]
	Endpoints          statedb.Table[*endpoints.Endpoint]
	Facts              statedb.Table[*bpfendpoints.Facts]
	Attachments        statedb.Table[*attachments.Attachment]

	Policies   statedb.RWTable[*policies.Policy]
	Compiled   statedb.RWTable[*policyentries.Policy]
	Named      statedb.RWTable[*namedcidrs.CIDR]
	Published  statedb.RWTable[*endpointpolicies.EndpointPolicy]
	ClassTable statedb.RWTable[*policyclasses.Class]
	Progress   statedb.RWTable[policyprogress.Progress]
	Initialize initialize
}

// initialize marks the table endpoint-policies as initialized, in a write transaction on the table.
type initialize func(statedb.WriteTxn)

func newInitialize(db *statedb.DB, table statedb.RWTable[*endpointpolicies.EndpointPolicy]) initialize {
	txn := db.WriteTxn(table)
	defer txn.Commit()
	return table.RegisterInitializer(txn, "endpoints")
}

const (
	minRetry = 100 * time.Millisecond
	maxRetry = 10 * time.Second
)

// loops are the two jobs. Both use the same state of the maps.
type loops struct {
	resolve *controller
	verify  *verifier
}

func newLoops(p params) loops {
	c := newController(p)
	return loops{c, &verifier{controller: c}}
}

func register(jobs job.Group, l loops, watch drift.Watch) {
	watchdog.AddRetried(jobs, "resolve-policies", l.resolve.run, minRetry, maxRetry)
	watchdog.AddTimer(jobs, "verify-policies", l.verify.paced, watch.Interval)
}

package servicecontroller

import (
	"log/slog"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/tables/apiservers"
	"github.com/waggle-net/waggle/pkg/tables/backends"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/frontends"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/nodeaddresses"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/tables/services"
	"github.com/waggle-net/waggle/pkg/tables/sources"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// Cell computes services, frontends and backends. No other cell writes these tables, except the statuses of frontends.
var Cell = cell.Module("services", "Services with their addresses and backends",
	cell.ProvidePrivate(
		newPreviousIDs, // from the real maps; tests replace them by a fake
		newHolders,     // files in the state directory; tests use directories of their own
	),
	implementation,
)

// implementation is the module without its access to the BPF maps and the state directory.
var implementation = cell.Group(
	cell.Config(DefaultConfig),
	cell.ProvidePrivate(
		services.NewTable, // only this cell writes
		frontends.NewTable,
		backends.NewTable,
		newRules,      // validated flags
		newInitialize, // functions that complete the tables
	),
	cell.Provide(
		statedb.RWTable[*services.Service].ToTable, // read-only for other cells
		statedb.RWTable[*frontends.Frontend].ToTable,
		statedb.RWTable[*backends.Backend].ToTable,
		frontends.NewStatuses, // for the cell that writes the maps
	),
	cell.Invoke(register),
)

type params struct {
	cell.In

	Log     *slog.Logger
	DB      *statedb.DB
	Rules   rules
	Earlier previousIDs
	Holders *holders

	KubernetesServices statedb.Table[*k8s.Service]
	Slices             statedb.Table[*k8s.EndpointSlice]
	Pods               statedb.Table[*k8s.Pod]
	Nodes              statedb.Table[*k8s.Node]
	CiliumNodes        statedb.Table[*cilium.Node]
	Cluster            statedb.Table[*nodes.Node]
	NodeAddresses      statedb.Table[nodeaddresses.Address]
	APIServers         statedb.Table[apiservers.Server]
	Endpoints          statedb.Table[*endpoints.Endpoint]
	Sources            statedb.Table[sources.Source]

	Services   statedb.RWTable[*services.Service]
	Frontends  statedb.RWTable[*frontends.Frontend]
	Backends   statedb.RWTable[*backends.Backend]
	Initialize initialize
}

// initialize completes the initializers of the three tables, in a write transaction on them. Each function may be called repeatedly; only its first call has an
// effect.
type initialize struct {
	first func(statedb.WriteTxn) // the rows that are known at the start are in the tables
	all   func(statedb.WriteTxn) // the tables are complete
}

func newInitialize(db *statedb.DB, s statedb.RWTable[*services.Service], f statedb.RWTable[*frontends.Frontend],
	b statedb.RWTable[*backends.Backend]) initialize {
	txn := db.WriteTxn(s, f, b)
	defer txn.Commit()
	var all []func(statedb.WriteTxn)
	for _, t := range []interface {
		RegisterInitializer(statedb.WriteTxn, string) func(statedb.WriteTxn)
	}{s, f, b} {
		all = append(all, t.RegisterInitializer(txn, "services"))
	}
	first := f.RegisterInitializer(txn, frontends.FirstInitializer)
	return initialize{first: first, all: func(txn statedb.WriteTxn) {
		first(txn)
		for _, done := range all {
			done(txn)
		}
	}}
}

const (
	minRetry = 100 * time.Millisecond
	maxRetry = 10 * time.Second
)

func register(jobs job.Group, p params) {
	watchdog.AddRetried(jobs, "compute-services", newController(p).run, minRetry, maxRetry)
}

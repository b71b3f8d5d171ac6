package identityallocator

import (
	"log/slog"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"golang.org/x/time/rate"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/labels"
	"github.com/waggle-net/waggle/pkg/tables/apiservers"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/identities"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// Cell assigns security identities to the endpoints of this node.
var Cell = cell.Module("identity", "Security identities of endpoints",
	cell.Config(DefaultConfig),
	cell.ProvidePrivate(
		newTables,      // only this cell writes identities and endpoint-identities
		newWantedTable, // label sets without a CiliumIdentity
	),
	cell.Provide( // read by other cells
		statedb.RWTable[*identities.Identity].ToTable,
		statedb.RWTable[*identities.EndpointIdentity].ToTable,
		newFilter, // selects the labels of identities, also for selectors of policies
	),
	cell.Invoke(
		registerController, // job: rows from endpoints and cilium-identities
		registerCreator,    // creates CiliumIdentity objects from desired-identities
	),
)

type params struct {
	cell.In

	Config     Config
	Log        *slog.Logger
	DB         *statedb.DB
	Settings   agentconfig.Agent
	Filter     *labels.Filter
	Client     *kubeapi.Client
	Endpoints  statedb.Table[*endpoints.Endpoint]
	CRDs       statedb.Table[*cilium.Identity]
	Servers    statedb.Table[apiservers.Server]
	Wanted     statedb.RWTable[*wanted]
	Identities statedb.RWTable[*identities.Identity]
	Of         statedb.RWTable[*identities.EndpointIdentity]
	Done       initialize
}

// initialize completes both tables. The transaction must hold both.
type initialize func(statedb.WriteTxn)

func newTables(db *statedb.DB) (
	known statedb.RWTable[*identities.Identity], of statedb.RWTable[*identities.EndpointIdentity], done initialize, err error,
) {
	if known, err = identities.NewTable(db); err != nil {
		return
	}
	if of, err = identities.NewEndpointTable(db); err != nil {
		return
	}
	txn := db.WriteTxn(known, of)
	defer txn.Commit()
	a, b := known.RegisterInitializer(txn, "endpoints"), of.RegisterInitializer(txn, "endpoints")
	return known, of, func(txn statedb.WriteTxn) { a(txn); b(txn) }, nil
}

func registerController(jobs job.Group, p params) {
	watchdog.AddRetried(jobs, "resolve-identities", newController(p).run, 100*time.Millisecond, 10*time.Second)
}

const (
	minRetry = 100 * time.Millisecond
	maxRetry = 5 * time.Second // an API server that responds again is used soon
	// confirm is the interval of checks for an object that the watch has not delivered yet.
	confirm   = 5 * time.Second
	roundSize = 100
)

func registerCreator(params reconciler.Params, p params) error {
	if p.Client == nil {
		return nil
	}
	ops := newCreator(p.Client, p.CRDs)
	_, err := watchdog.RegisterRemote(params, p.Wanted, (*wanted).clone, (*wanted).withStatus,
		func(w *wanted) reconciler.Status { return w.Status }, ops, ops,
		reconciler.WithoutPruning(), // identitygc deletes unused objects for the whole cluster
		reconciler.WithRefreshing(confirm, rate.NewLimiter(1, 1)),
		reconciler.WithRetry(minRetry, maxRetry),
		reconciler.WithRoundLimits(roundSize, rate.NewLimiter(rate.Inf, 1)), // no wait: an ADD may be waiting for a row
	)
	return err
}

package reflectors

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/waggle-net/waggle/cells/kubernetes/k8stables/snapshot"
	"github.com/waggle-net/waggle/cells/kubernetes/k8stables/tables"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/tables/sources"
	"github.com/waggle-net/waggle/pkg/throttle"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// Producer names this source in the table sources.
const Producer = "reflectors"

// Settings configures the source.
type Settings struct {
	NodeName    string
	SyncTimeout time.Duration // ends the agent if required tables are incomplete and there is neither a copy nor pods of a previous run; 0 means never
	Copy        string        // path of the copy on disk; empty for none
	CopyEvery   time.Duration // minimum time between two copies
	Slices      bool          // read pods of other nodes from CiliumEndpointSlices while these are complete
}

// Source fills the tables from the API server.
type Source struct {
	settings Settings
	cluster  string // ID of the client's cluster
	set      *tables.Set
	stores   []*store
	merger   *merger // nil unless slices are read
	log      *slog.Logger
	shutdown hive.Shutdowner
	// carryOn reports whether pods of a previous run exist, so that the agent must wait instead of ending.
	carryOn   func() bool
	copied    time.Time      // when the loaded copy was written; zero without one
	pace      throttle.Limit // of complete copies
	writeFile func(path string, file []byte) error
}

// New registers the source as a producer of its tables. It does not connect.
func New(settings Settings, set *tables.Set, client *kubeapi.Client, carryOn func() bool, shutdown hive.Shutdowner,
	log *slog.Logger) (*Source, error) {
	if reasons := validation.IsValidLabelValue(settings.NodeName); settings.Slices && len(reasons) > 0 {
		log.Warn("All CiliumEndpoints are read, and no CiliumEndpointSlices: a selector for this node is impossible because its name is not a valid label value",
			"node", settings.NodeName, "reason", reasons[0])
		settings.Slices = false
	}
	s := &Source{settings: settings, cluster: client.ClusterID(), set: set, log: log, shutdown: shutdown, carryOn: carryOn,
		pace:      throttle.Limit{Ratio: copyRatio, Min: settings.CopyEvery, Max: longestCopyPause, Measure: throttle.CPUTime},
		writeFile: snapshot.Write}
	txn := set.Write(set.All()...)
	defer txn.Abort()
	if settings.Slices {
		var err error
		if s.merger, err = newMerger(set, settings.NodeName, txn); err != nil {
			return nil, err
		}
	}
	for _, k := range kindsOf(settings) {
		table, ok := set.ByName(k.table)
		if !ok {
			return nil, fmt.Errorf("reflect %s: there is no table %s", k.resource, k.table)
		}
		r := &report{set: set, table: k.table}
		lw := &listWatch{ListWatch: client.ListWatch(k.resource, "", k.narrow), converter: converter{settings.NodeName, set.DB, table},
			servers: client.Servers, report: r, client: client, resource: k.resource, read: k.read(), gather: k.gather(),
			optional: k.emptyWithoutDefinition(set)}
		one := &store{kind: k, set: set, table: table, lw: lw, report: r, wake: make(chan struct{}, 1), initialized: func(statedb.WriteTxn) {},
			rejected: map[string]tables.Reject{}}
		if !k.staged {
			one.initialized = table.Initializer(txn, Producer+"-"+k.resource.Plural)
		}
		s.stores = append(s.stores, one)
	}
	s.initialize(txn)
	txn.Commit()
	return s, nil
}

// initialize writes the rows of sources for all tables. The tables sources and k8s-rejects need no initializer, since no prune depends on them.
func (s *Source) initialize(txn statedb.WriteTxn) {
	names := []string{remoteTable}
	for _, one := range s.stores {
		names = append(names, one.table.Name())
	}
	for _, name := range names {
		// An insert fails only in a closed database; the agent is then ending.
		_ = s.set.SetSource(txn, sources.Source{Table: name, Producer: Producer, State: sources.Waiting, WaitingFor: sources.FirstList})
	}
}

// Run fills the tables until ctx ends.
func (s *Source) Run(ctx context.Context, health cell.Health) error {
	s.load(health.NewScope("copy"))
	ctx = klog.NewContext(ctx, logr.Discard()) // the reports contain all relevant errors
	var all, commits sync.WaitGroup
	for _, one := range s.stores {
		one.report.health = health.NewScope(one.scope())
		commits.Go(func() { one.commits(ctx) })
		if one.table.Name() == s.set.Stage.Listed.Name() {
			s.merger.everything = demand{store: one, run: one.reflect}
			continue
		}
		all.Go(func() { one.reflect(ctx) })
	}
	if s.merger != nil {
		all.Go(func() { s.merger.run(ctx, health.NewScope("slices")) })
	}
	all.Go(func() { s.awaitSync(ctx, health.NewScope("sync")) })
	copying, committed := context.WithCancel(context.WithoutCancel(ctx)) // the last copy must contain the last commits
	all.Go(func() { s.copies(copying, health.NewScope("copy")) })
	watchdog.Idle(ctx) // each goroutine has its own loop in the watchdog
	commits.Wait()
	committed()
	all.Wait()
	return nil
}

// reflect runs the reflector of a store until ctx ends.
func (s *store) reflect(ctx context.Context) {
	cache.NewReflectorWithOptions(s.lw.wrap(), nil, s, cache.ReflectorOptions{
		Name: s.resource.String(), TypeDescription: s.resource.String(), Backoff: backoff(), Clock: untilDone{ctx: ctx},
	}).RunWithContext(ctx)
}

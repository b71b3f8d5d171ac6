package k8stables

import (
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/cells/kubernetes/k8stables/reflectors"
	"github.com/waggle-net/waggle/cells/kubernetes/k8stables/tables"
	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/sources"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// Cell fills the tables of Kubernetes objects, from the API server or, without Kubernetes, from manifests.
var Cell = cell.Module("k8s-tables", "Kubernetes objects as tables",
	cell.Config(DefaultConfig),
	cell.ProvidePrivate( // only this cell may write
		k8s.NewNodeTable,
		k8s.NewPodTable,
		k8s.NewNamespaceTable,
		k8s.NewServiceTable,
		k8s.NewEndpointSliceTable,
		k8s.NewNetworkPolicyTable,
		cilium.NewNodeTable,
		cilium.NewEndpointTable,
		cilium.NewIdentityTable,
		cilium.NewPolicyTable,
		cilium.NewCIDRGroupTable,
		sources.NewTable,
		newManifestTable,
		tables.NewRejectTable,
		tables.NewStage, // inputs of cilium-endpoints while slices are read
		tables.New,      // set of all tables
		newSettings,     // checked flags
	),
	cell.Provide( // anyone may read
		statedb.RWTable[*k8s.Node].ToTable,
		statedb.RWTable[*k8s.Pod].ToTable,
		statedb.RWTable[*k8s.Namespace].ToTable,
		statedb.RWTable[*k8s.Service].ToTable,
		statedb.RWTable[*k8s.EndpointSlice].ToTable,
		statedb.RWTable[*k8s.NetworkPolicy].ToTable,
		statedb.RWTable[*cilium.Node].ToTable,
		statedb.RWTable[*cilium.Endpoint].ToTable,
		statedb.RWTable[*cilium.Identity].ToTable,
		statedb.RWTable[*cilium.Policy].ToTable,
		statedb.RWTable[*cilium.CIDRGroup].ToTable,
		statedb.RWTable[sources.Source].ToTable,
	),
	cell.Invoke(register),
)

const (
	retryMin = 100 * time.Millisecond
	retryMax = 10 * time.Second
)

type params struct {
	cell.In

	Group     job.Group
	Lifecycle cell.Lifecycle
	Client    *kubeapi.Client // nil when Kubernetes is off
	Tables    *tables.Set
	Manifests statedb.RWTable[manifest]
	Settings  settings
	Agent     agentconfig.Agent
	Shutdown  hive.Shutdowner
	Log       *slog.Logger
}

// register selects the source. The choice is final.
func register(p params) error {
	past := &previousRun{agent: p.Agent}
	p.Lifecycle.Append(cell.Hook{OnStart: past.look})
	if p.Client == nil {
		s := &source{p.Settings, newManifestTables(p.Tables, p.Manifests), past.found, p.Log}
		watchdog.AddRetried(p.Group, "read-manifests", s.run, retryMin, retryMax)
		return nil
	}
	s, err := reflectors.New(p.Settings.reflectors, p.Tables, p.Client, past.found, p.Shutdown, p.Log)
	if err != nil {
		return err
	}
	watchdog.AddRetried(p.Group, "follow-api-server", s.Run, retryMin, retryMax)
	return nil
}

// previousRun detects pods that a previous run attached, by their endpoint files. The files are in a tmpfs, so a boot removes them, as it removes
// pinned objects. Pinned objects are no evidence: this run has created its own before the hook runs.
type previousRun struct {
	agent agentconfig.Agent
	pods  bool
}

// look runs before the API can attach a pod. A directory that cannot be read counts as empty.
func (e *previousRun) look(cell.HookContext) error {
	files, _ := os.ReadDir(e.agent.EndpointsDir())
	e.pods = slices.ContainsFunc(files, func(f os.DirEntry) bool { return f.Type().IsRegular() && f.Name()[0] != '.' })
	return nil
}

func (e *previousRun) found() bool { return e.pods }

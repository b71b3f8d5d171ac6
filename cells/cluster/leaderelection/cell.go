package leaderelection

import (
	"errors"
	"log/slog"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/tables/leadership"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// Cell elects a leader among the replicas of the cluster role.
var Cell = cell.Module("leader-election", "One leader among the replicas of the cluster role",
	cell.Config(DefaultConfig),
	cell.ProvidePrivate(
		leadership.NewTable, // only this cell may write
		newSettings,         // checked flags
	),
	cell.Provide(statedb.RWTable[leadership.Leadership].ToTable),
	cell.Invoke(register),
)

type params struct {
	cell.In

	Lifecycle cell.Lifecycle
	Jobs      job.Group
	Log       *slog.Logger
	DB        *statedb.DB
	Table     statedb.RWTable[leadership.Leadership]
	Settings  settings
	Client    *kubeapi.Client
}

var errNoKubernetes = errors.New("the cluster role works on objects of Kubernetes, and no API server is known: run it in a pod with " +
	"a ServiceAccount, or set --k8s-api-server or --k8s-kubeconfig-path, and do not set --enable-k8s=false")

// register fails at start without an API server, but not at construction: "waggle-agent hive" must be able to show the cells.
func register(p params) {
	if p.Client == nil {
		p.Lifecycle.Append(cell.Hook{OnStart: func(cell.HookContext) error { return errNoKubernetes }})
		return
	}
	e := newElector(p.Settings, &apiLease{client: p.Client, namespace: p.Settings.namespace}, p.DB, p.Table, p.Log)
	watchdog.AddRetried(p.Jobs, "elect", e.run, time.Second, 10*time.Second)
}

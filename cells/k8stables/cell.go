package k8stables

import (
	"log/slog"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/sources"
)

// Cell fills the tables of Kubernetes objects.
var Cell = cell.Module("k8s-tables", "Kubernetes objects as tables",
	cell.Config(DefaultConfig),
	cell.ProvidePrivate( // only this cell may write
		k8s.NewNodeTable,
		k8s.NewPodTable,
		k8s.NewNamespaceTable,
		k8s.NewServiceTable,
		k8s.NewNetworkPolicyTable,
		sources.NewTable,
		newManifestTable,
		newSettings, // checked flags
	),
	cell.Provide( // anyone may read
		statedb.RWTable[*k8s.Node].ToTable,
		statedb.RWTable[*k8s.Pod].ToTable,
		statedb.RWTable[*k8s.Namespace].ToTable,
		statedb.RWTable[*k8s.Service].ToTable,
		statedb.RWTable[*k8s.NetworkPolicy].ToTable,
		statedb.RWTable[sources.Source].ToTable,
	),
	cell.Invoke(register),
)

const (
	retryMin = 100 * time.Millisecond
	retryMax = 10 * time.Second
)

func register(group job.Group, p tablesParams, settings settings, log *slog.Logger) {
	s := &source{settings, newTables(p), log}
	group.Add(job.OneShot("read-manifests", s.run, job.WithRetry(-1, &job.ExponentialBackoff{Min: retryMin, Max: retryMax})))
}

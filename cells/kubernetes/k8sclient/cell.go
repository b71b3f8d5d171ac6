package k8sclient

import (
	"fmt"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/tables/apiservers"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// Cell provides the client of the API server and writes the table api-servers. It connects at the first request, which a job sends.
var Cell = cell.Module("k8s-client", "Access to the API server",
	cell.Config(DefaultConfig),
	cell.ProvidePrivate(
		newEnvironment,      // variables and files that Kubernetes provides to a pod
		newSettings,         // checked flags
		apiservers.NewTable, // only this cell may write
	),
	cell.Provide(
		newClient, // nil when Kubernetes is off
		statedb.RWTable[apiservers.Server].ToTable,
	),
	cell.Invoke(register),
)

const (
	retryMin = 100 * time.Millisecond
	retryMax = 10 * time.Second
)

func newClient(s settings) (*kubeapi.Client, error) {
	if s.config == nil {
		return nil, nil
	}
	client, err := kubeapi.New(s.config, s.connection, s.servers...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.origin, err)
	}
	return client, nil
}

func register(group job.Group, p params) {
	if p.Client == nil {
		p.Log.Info("Kubernetes is off", "reason", p.Settings.origin)
		return
	}
	watchdog.AddRetried(group, "probe-api-servers", p.probe, retryMin, retryMax)
	watchdog.AddRetried(group, "publish-api-servers", p.publish, retryMin, retryMax)
}

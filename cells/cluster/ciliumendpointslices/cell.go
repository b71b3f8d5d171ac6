package ciliumendpointslices

import (
	"log/slog"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/tables/leadership"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// Cell writes CiliumEndpointSlices, or removes existing ones when the option is off.
var Cell = cell.Module("cilium-endpoint-slices", "Pods of the cluster as CiliumEndpointSlices",
	cell.Config(DefaultConfig),
	cell.ProvidePrivate(newSettings), // checked flags
	cell.Invoke(register),
)

type params struct {
	cell.In

	Log        *slog.Logger
	DB         *statedb.DB
	Leadership statedb.Table[leadership.Leadership]
	Settings   settings
	Client     *kubeapi.Client
}

const (
	retryMin = 500 * time.Millisecond
	retryMax = 10 * time.Second
)

func register(group job.Group, p params) {
	switch {
	case p.Client == nil:
	case p.Settings.enable:
		watchdog.AddRetried(group, "write-slices", (&controller{p}).run, retryMin, retryMax)
	default:
		watchdog.AddRetried(group, "remove-slices", (&remover{p}).run, retryMin, retryMax)
	}
}

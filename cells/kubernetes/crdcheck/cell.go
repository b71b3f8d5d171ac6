package crdcheck

import (
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/tables/apiservers"
	"github.com/waggle-net/waggle/pkg/tables/sources"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// Cell compares the definitions of custom resources with the wanted versions.
var Cell = cell.Module("crds", "Definitions of custom resources",
	cell.ProvidePrivate(newTable), // only this cell writes it
	cell.Provide(statedb.RWTable[Definition].ToTable),
	cell.Invoke(register),
)

type params struct {
	cell.In

	DB      *statedb.DB
	Table   statedb.RWTable[Definition]
	Servers statedb.Table[apiservers.Server]
	Sources statedb.Table[sources.Source]
	Client  *kubeapi.Client
	Jobs    job.Group
}

const (
	retryMin = time.Second
	retryMax = time.Minute
)

func register(p params) {
	if p.Client == nil {
		return
	}
	watchdog.AddRetried(p.Jobs, "compare-definitions", (&controller{params: p}).run, retryMin, retryMax)
}

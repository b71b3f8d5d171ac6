package selftest

import (
	"log/slog"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/selftestreport"
	"github.com/waggle-net/waggle/pkg/tables/selftests"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// Cell reads the report of "waggle-agent setup". It is the only writer of the table self-tests.
var Cell = cell.Module("self-test", "Result of the test attach on this node",
	cell.ProvidePrivate(func() bootID { return selftestreport.BootID }), // tests replace it
	implementation,
)

// implementation is the module without the access to the kernel.
var implementation = cell.Group(
	cell.ProvidePrivate(selftests.NewTable), // only this cell writes
	cell.Provide(statedb.RWTable[selftests.SelfTest].ToTable),
	cell.Invoke(register), // the job that watches the file
)

const (
	settle   = 20 * time.Millisecond // debounce interval of file events
	reread   = 30 * time.Second      // interval of reads without an event, in case an event was lost
	retryMin = 100 * time.Millisecond
	retryMax = 30 * time.Second
)

// bootID returns the boot id of the kernel.
type bootID func() (string, error)

type params struct {
	cell.In

	Log   *slog.Logger
	DB    *statedb.DB
	Table statedb.RWTable[selftests.SelfTest]
	Agent agentconfig.Agent
	Boot  bootID
}

func register(jobs job.Group, p params) {
	w := &watcher{p}
	watchdog.AddRetried(jobs, "watch-report", w.run, retryMin, retryMax)
}

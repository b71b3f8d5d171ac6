package nodefirewall

import (
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"

	"github.com/waggle-net/waggle/pkg/watchdog"
)

// Cell reads the nftables rules of the node at intervals, and is Degraded while they drop packets of pods.
var Cell = cell.Module("node-firewall", "Firewalls of the node that drop packets of pods",
	cell.ProvidePrivate(newKernel), // nftables
	Watcher,
)

// Watcher is the cell without the access to nftables, for tests with a fake kernel.
var Watcher = cell.Invoke(register)

func register(jobs job.Group, c controller) {
	watchdog.AddRetried(jobs, "read-firewall", c.run, time.Second, time.Minute)
}

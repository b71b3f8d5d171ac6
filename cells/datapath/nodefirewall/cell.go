package nodefirewall

import (
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/tables/firewallchains"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// Cell reads the nftables rules of the node at intervals, writes the chains that drop packets of pods to the table firewall-chains, and is Degraded while
// packets are lost.
var Cell = cell.Module("node-firewall", "Firewalls of the node that drop packets of pods",
	cell.ProvidePrivate(newKernel), // nftables
	Watcher,
)

// Watcher is the cell without the access to nftables, for tests with a fake kernel.
var Watcher = cell.Group(
	cell.ProvidePrivate(firewallchains.NewTable), // only this cell writes
	cell.Provide(statedb.RWTable[firewallchains.Chain].ToTable),
	cell.Invoke(register),
)

func register(jobs job.Group, p params) {
	txn := p.DB.WriteTxn(p.Table)
	c := &controller{params: p, initialized: p.Table.RegisterInitializer(txn, "node-firewall")}
	txn.Commit()
	watchdog.AddRetried(jobs, "read-firewall", c.run, time.Second, time.Minute)
}

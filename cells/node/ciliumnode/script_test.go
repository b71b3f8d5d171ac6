package ciliumnode

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/script"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi/kubetest"
	"github.com/waggle-net/waggle/pkg/tables/attachments"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/firewallchains"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
	"github.com/waggle-net/waggle/pkg/tables/nodeslots"
	"github.com/waggle-net/waggle/pkg/tables/overlays"
	"github.com/waggle-net/waggle/pkg/tables/sources"
)

// procfs creates a procfs with only the file of the boot id.
func procfs(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	name := filepath.Join(dir, "sys/kernel/random/boot_id")
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte("boot-7\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func inputs(t testing.TB, client *kubeapi.Client, a agentconfig.Agent) cell.Cell {
	t.Helper()
	a.NodeName, a.Procfs = "one", procfs(t)
	return cell.Provide(
		func() *kubeapi.Client { return client },
		func() agentconfig.Agent { return a },
		k8s.NewNodeTable, statedb.RWTable[*k8s.Node].ToTable,
		cilium.NewNodeTable, statedb.RWTable[*cilium.Node].ToTable,
		sources.NewTable, statedb.RWTable[sources.Source].ToTable,
		localnode.NewTable, statedb.RWTable[*localnode.LocalNode].ToTable,
		overlays.NewTable, statedb.RWTable[*overlays.Overlay].ToTable,
		nodeslots.NewTable, statedb.RWTable[*nodeslots.Slot].ToTable,
		attachments.NewTable, statedb.RWTable[*attachments.Attachment].ToTable,
		newFirewallChains, statedb.RWTable[firewallchains.Chain].ToTable,
		endpoints.NewTable, statedb.RWTable[*endpoints.Endpoint].ToTable,
	)
}

// newFirewallChains creates the table firewall-chains, which a script completes.
func newFirewallChains(db *statedb.DB) (table statedb.RWTable[firewallchains.Chain], cmd hive.ScriptCmdOut, err error) {
	if table, err = firewallchains.NewTable(db); err != nil {
		return
	}
	txn := db.WriteTxn(table)
	defer txn.Commit()
	done := table.RegisterInitializer(txn, "test")
	return table, hive.NewScriptCmd("firewall/complete", script.Command(script.CmdUsage{Summary: "Complete the table firewall-chains"},
		func(*script.State, ...string) (script.WaitFunc, error) {
			txn := db.WriteTxn(table)
			defer txn.Commit()
			done(txn)
			return nil, nil
		})), nil
}

func TestScripts(t *testing.T) {
	t.Parallel()
	for dir, a := range map[string]agentconfig.Agent{
		agentconfig.IPAMKubernetes:  {IPAM: agentconfig.IPAMKubernetes},
		agentconfig.IPAMClusterPool: {IPAM: agentconfig.IPAMClusterPool},
		agentconfig.RoutingTunnel:   {IPAM: agentconfig.IPAMClusterPool, TunnelPort: 8472, EnableIPv4: true, EnableIPv6: true},
		agentconfig.RoutingHybrid:   {IPAM: agentconfig.IPAMClusterPool, TunnelPort: 8472, EnableIPv4: true, Hybrid: true},
	} {
		celltest.RunVirtual(t, "testdata/"+dir+"/*.txtar", func(t testing.TB) []cell.Cell {
			server := kubetest.New(t, kubetest.InMemory())
			return []cell.Cell{Cell, inputs(t, server.Client(t), a),
				cell.Provide(func() hive.ScriptCmdsOut { return server.Commands(t) })}
		})
	}
}

// TestScripts_Off has no API server.
func TestScripts_Off(t *testing.T) {
	t.Parallel()
	celltest.RunVirtual(t, "testdata/*.txtar", func(t testing.TB) []cell.Cell {
		return []cell.Cell{Cell, inputs(t, nil, agentconfig.Agent{IPAM: agentconfig.IPAMClusterPool})}
	})
}

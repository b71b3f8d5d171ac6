package endpointmanager

import (
	"context"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/script"
	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/drift"
	"github.com/waggle-net/waggle/pkg/endpoint"
	"github.com/waggle-net/waggle/pkg/ipam"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/tables/apiservers"
	"github.com/waggle-net/waggle/pkg/tables/devices"
	"github.com/waggle-net/waggle/pkg/tables/endpointstates"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
	"github.com/waggle-net/waggle/pkg/tables/sources"
)

func TestScripts(t *testing.T) {
	defer goleak.VerifyNone(t)
	celltest.RunVirtual(t, "testdata/*.txtar", func(t testing.TB) []cell.Cell {
		return []cell.Cell{
			module(func() kernel { return &fakeKernel{} }),
			cell.Provide(
				newAllocator, func(a *fakeAllocator) ipam.Allocator { return a },
				func() agentconfig.Agent { return agentconfig.Agent{StateDir: t.TempDir()} },
				endpointstates.NewTable, statedb.RWTable[*endpointstates.EndpointState].ToTable,
				k8s.NewPodTable, statedb.RWTable[*k8s.Pod].ToTable,
				k8s.NewNamespaceTable, statedb.RWTable[*k8s.Namespace].ToTable,
				apiservers.NewTable, statedb.RWTable[apiservers.Server].ToTable,
				func() *kubeapi.Client { return nil },
				devices.NewTable, statedb.RWTable[*devices.Device].ToTable,
				sources.NewTable, readManifests,
				localnode.NewTable, statedb.RWTable[*localnode.LocalNode].ToTable,
				func() drift.Watch { return drift.Watch{Repairs: &repairs{}, Interval: time.Minute} },
				requests,
			),
		}
	})
}

// readManifests sets the source of pods to synced, with no manifests.
func readManifests(db *statedb.DB, table statedb.RWTable[sources.Source]) (statedb.Table[sources.Source], error) {
	txn := db.WriteTxn(table)
	defer txn.Commit()
	_, _, err := table.Insert(txn, sources.Source{Table: "k8s-pods", Producer: "manifests", State: sources.Synced})
	return table, err
}

// requests provides the requests that the API makes for a plugin: request/create <number>, request/delete <container>, request/label <id> <label...>, and
// state-files, which lists the directory.
func requests(m endpoint.Manager, agent agentconfig.Agent) hive.ScriptCmdsOut {
	ctx := context.Background()
	return hive.NewScriptCmds(map[string]script.Cmd{
		"request/create": printing("Create endpoint number n", "n", func(args []string) (string, error) {
			n, err := strconv.Atoi(args[0])
			if err != nil {
				return "", err
			}
			if _, err = m.Create(ctx, request(n)); err != nil {
				return err.Error() + "\n", nil // the script compares the error
			}
			return "", nil
		}),
		"request/delete": printing("Delete a container", "id", func(args []string) (string, error) {
			n, err := m.DeleteContainer(ctx, args[0])
			return strconv.Itoa(n) + "\n", err
		}),
		"request/label": printing("Set labels", "id labels...", func(args []string) (string, error) {
			_, err := m.SetLabels(args[0], args[1:])
			return "", err
		}),
		"state-files": printing("List the state files", "", func([]string) (string, error) {
			entries, err := os.ReadDir(agent.EndpointsDir())
			text := ""
			for _, e := range entries {
				text += e.Name() + "\n"
			}
			return text, err
		}),
	})
}

// The file was written by the first release; every later release must read it.
func TestRestore_FileOfTheFirstVersion(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	content, err := os.ReadFile("testdata/endpoint-v1.json")
	require.NoError(t, err)
	require.NoError(t, os.Mkdir(path(dir, ""), 0o700))
	write(t, dir, "1.json", content)
	r := started(t, dir)
	require.Len(t, r.rows(), 1)
	require.Empty(t, r.rows()[0].Quarantine)
	want := fromRequest(request(1))
	want.ID, want.Restored, want.CreatedAt = 1, true, r.rows()[0].CreatedAt
	want.Labels = map[string]string{"container:app": "web"}
	require.True(t, want.Equal(r.rows()[0]), "%+v", r.rows()[0])
}

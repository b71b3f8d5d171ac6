package identityallocator

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	upstream "github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/script"
	"github.com/cilium/statedb"
	"go.uber.org/goleak"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi/kubetest"
	"github.com/waggle-net/waggle/pkg/tables/apiservers"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// inputs provides the tables of other cells, which scripts fill.
func inputs() cell.Cell {
	return cell.Group(
		agentconfig.Cell,
		cell.Provide(
			endpoints.NewTable, statedb.RWTable[*endpoints.Endpoint].ToTable,
			apiservers.NewTable, statedb.RWTable[apiservers.Server].ToTable,
			cilium.NewIdentityTable, statedb.RWTable[*cilium.Identity].ToTable,
		))
}

func TestScripts(t *testing.T) {
	t.Parallel()
	celltest.RunVirtual(t, "testdata/memory-*.txtar", func(testing.TB) []cell.Cell {
		return []cell.Cell{Cell, inputs(), cell.Provide(func() *kubeapi.Client { return nil })}
	})
}

func TestScripts_WithKubernetes(t *testing.T) {
	t.Parallel()
	celltest.RunVirtual(t, "testdata/kube-*.txtar", func(t testing.TB) []cell.Cell {
		server := kubetest.New(t, kubetest.InMemory())
		return []cell.Cell{Cell, inputs(), cell.Module("kube", "The API server",
			cell.Provide(
				func() *kubeapi.Client { return server.Client(t) },
				func() upstream.ScriptCmdsOut { return commands(t, server) },
			),
			cell.Invoke(func(lifecycle cell.Lifecycle, db *statedb.DB, table statedb.RWTable[*cilium.Identity]) {
				run := mirror(t, server, db, table)
				lifecycle.Append(cell.Hook{OnStart: func(cell.HookContext) error { run(); return nil }})
			}),
		)}
	})
}

func commands(t testing.TB, server *kubetest.Server) upstream.ScriptCmdsOut {
	simple := func(summary string, run func(args []string) string) script.Cmd {
		return script.Command(script.CmdUsage{Summary: summary, Args: "..."}, func(_ *script.State, args ...string) (script.WaitFunc, error) {
			out := run(args)
			return func(*script.State) (string, string, error) { return out, "", nil }, nil
		})
	}
	return upstream.NewScriptCmds(map[string]script.Cmd{
		"kube/slow": simple("Answer requests that create objects after a time", func(args []string) string {
			delay, err := time.ParseDuration(args[0])
			if err != nil {
				return err.Error()
			}
			server.Fault(func(r *http.Request) (int, string) {
				if r.Method == http.MethodPost {
					select {
					case <-time.After(delay):
					case <-t.Context().Done():
					}
				}
				return 0, ""
			})
			return ""
		}),
		"kube/stop":       simple("Stop the API server", func([]string) string { server.Stop(); return "" }),
		"kube/start":      simple("Start it again", func([]string) string { server.Start(t); return "" }),
		"kube/identities": simple("Show the objects", func([]string) string { return strings.Join(objects(server), "") }),
		"kube/delete": simple("Delete the identities of labels", func(args []string) string {
			for _, o := range server.List(kubeapi.CiliumIdentities) {
				id := o.(*ciliumv2.CiliumIdentity)
				if cilium.LabelsKey(id.SecurityLabels) == args[0]+";" {
					server.Remove(kubeapi.CiliumIdentities, "", id.Name)
				}
			}
			return ""
		}),
	})
}

// objects describes all CiliumIdentity objects, sorted by the key of their labels.
func objects(server *kubetest.Server) (list []string) {
	for _, o := range server.List(kubeapi.CiliumIdentities) {
		id := o.(*ciliumv2.CiliumIdentity)
		var labels []string
		for _, k := range slices.Sorted(maps.Keys(id.Labels)) {
			labels = append(labels, k+"="+id.Labels[k])
		}
		list = append(list, fmt.Sprintf("%s labels %s\n", cilium.LabelsKey(id.SecurityLabels), strings.Join(labels, ",")))
	}
	slices.Sort(list)
	return list
}

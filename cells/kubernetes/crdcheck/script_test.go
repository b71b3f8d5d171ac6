package crdcheck

import (
	"fmt"
	"net/http"
	"strconv"
	"testing"

	upstream "github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/script"
	"github.com/cilium/statedb"
	"go.uber.org/goleak"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/kubernetes/crds"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi/kubetest"
	"github.com/waggle-net/waggle/pkg/tables/apiservers"
	"github.com/waggle-net/waggle/pkg/tables/sources"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestScripts(t *testing.T) {
	t.Parallel()
	celltest.RunVirtual(t, "testdata/*.txtar", func(t testing.TB) []cell.Cell {
		server := kubetest.New(t, kubetest.InMemory())
		return []cell.Cell{Cell, cell.Provide(
			func() *kubeapi.Client { return server.Client(t) },
			apiservers.NewTable, statedb.RWTable[apiservers.Server].ToTable, sources.NewTable, statedb.RWTable[sources.Source].ToTable,
			func() upstream.ScriptCmdsOut { return commands(server) },
		)}
	})
}

// TestCell_WithoutKubernetes: the cell runs no job and has no rows.
func TestCell_WithoutKubernetes(t *testing.T) {
	t.Parallel()
	celltest.RunVirtual(t, "testdata/off/*.txtar", func(testing.TB) []cell.Cell {
		return []cell.Cell{Cell, cell.Provide(func() *kubeapi.Client { return nil },
			apiservers.NewTable, statedb.RWTable[apiservers.Server].ToTable, sources.NewTable, statedb.RWTable[sources.Source].ToTable)}
	})
}

// commands change the definitions in the API server.
func commands(server *kubetest.Server) upstream.ScriptCmdsOut {
	command := func(usage string, do func(args []string) error) script.Cmd {
		return script.Command(script.CmdUsage{Summary: usage}, func(_ *script.State, args ...string) (script.WaitFunc, error) {
			return nil, do(args)
		})
	}
	return upstream.NewScriptCmds(map[string]script.Cmd{
		"install": command("install VERSION: all definitions", func(args []string) error {
			for _, name := range crds.NamesInCluster() {
				put(server, name, args[0])
			}
			return nil
		}),
		"put": command("put NAME [VERSION]: one definition", func(args []string) error {
			put(server, args[0], append(args, "")[1])
			return nil
		}),
		"remove": command("remove NAME", func(args []string) error {
			if !server.Remove(kubeapi.CustomResourceDefinitions, "", args[0]) {
				return fmt.Errorf("%s was not there", args[0])
			}
			return nil
		}),
		"deny": command("deny: as RBAC does", func([]string) error {
			server.Deny("get", kubeapi.CustomResourceDefinitions)
			return nil
		}),
		"asked": command("asked NUMBER: the definitions that the agent has requested", func(args []string) error {
			if n := strconv.Itoa(len(server.Requests())); n != args[0] {
				return fmt.Errorf("%s definitions were requested", n)
			}
			return nil
		}),
		"fail": command("fail: each request with an error of the server", func([]string) error {
			server.Fault(func(*http.Request) (int, string) { return http.StatusInternalServerError, "" })
			return nil
		}),
	})
}

func put(server *kubetest.Server, name, version string) {
	object := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{Kind: "CustomResourceDefinition", APIVersion: "apiextensions.k8s.io/v1"},
		ObjectMeta: metav1.ObjectMeta{Name: name}}
	if version != "" {
		object.Labels = map[string]string{crds.VersionLabel: version}
	}
	server.Put(object)
}

package ipamallocator

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/script"
	"github.com/cilium/statedb"
	"k8s.io/client-go/rest"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/ipam"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/nodeaddresses"
	"github.com/waggle-net/waggle/pkg/tables/nodecidrs"
	"github.com/waggle-net/waggle/pkg/tables/sources"
)

// TestScripts runs the cell with tables that the script fills, and with commands that make the API's requests.
func TestScripts(t *testing.T) {
	t.Parallel()
	client, err := kubeapi.New(&rest.Config{Host: "http://127.0.0.1:1"}, kubeapi.DefaultConnection) // never connects: only its presence matters
	if err != nil {
		t.Fatal(err)
	}
	scripts(t, "testdata/*.txtar", nil)
	scripts(t, "testdata/apiserver/*.txtar", client)
}

// scripts runs the cell with or without an API server.
func scripts(t *testing.T, glob string, client *kubeapi.Client) {
	t.Helper()
	celltest.RunVirtual(t, glob, func(t testing.TB) []cell.Cell {
		state := t.TempDir()
		return []cell.Cell{Cell, cell.Provide(
			func() *kubeapi.Client { return client },
			cilium.NewNodeTable, statedb.RWTable[*cilium.Node].ToTable,
			k8s.NewNodeTable, statedb.RWTable[*k8s.Node].ToTable,
			sources.NewTable, statedb.RWTable[sources.Source].ToTable,
			func() agentconfig.Agent {
				return agentconfig.Agent{EnableIPv4: true, EnableIPv6: true, StateDir: state, NodeName: "one", EndpointHealthChecking: true}
			},
			nodecidrs.NewTable, statedb.RWTable[nodecidrs.Candidate].ToTable,
			nodeaddresses.NewTable, statedb.RWTable[nodeaddresses.Address].ToTable,
			callers,
			func() hive.ScriptCmdsOut {
				return hive.NewScriptCmds(map[string]script.Cmd{"env/state": command(func(s *script.State, _ []string) (string, error) {
					return "", s.Setenv("STATE", state)
				})})
			},
		)}
	})
}

func command(f func(s *script.State, args []string) (string, error)) script.Cmd {
	return script.Command(script.CmdUsage{Summary: "Test"}, func(s *script.State, args ...string) (script.WaitFunc, error) {
		return func(s *script.State) (string, string, error) {
			out, err := f(s, args)
			if err != nil {
				// The script engine treats the error of a context as the end of the script.
				return out, err.Error() + "\n", errors.New("failed")
			}
			return out, "", nil
		}, nil
	})
}

// allocTimeout is the timeout of a command while no address can be allocated yet.
const allocTimeout = 20 * time.Millisecond

// callers provides the commands "ipam/next owner", "ipam/specific address owner", "ipam/claim address uuid attachment", "ipam/restore address attachment",
// "ipam/restore-done" and "ipam/release address attachment".
func callers(a ipam.Allocator) hive.ScriptCmdsOut {
	uuids := map[string]string{}
	return hive.NewScriptCmds(map[string]script.Cmd{
		"ipam/next": command(func(_ *script.State, args []string) (string, error) {
			ctx, cancel := context.WithTimeout(context.Background(), allocTimeout)
			defer cancel()
			req := ipam.Request{Owner: args[0], Expire: true}
			for _, family := range args[1:] {
				req.IPv4, req.IPv6 = req.IPv4 || family == "ipv4", req.IPv6 || family == "ipv6"
			}
			r, err := a.Next(ctx, req)
			var out strings.Builder
			for _, allocation := range []*ipam.Allocation{r.IPv4, r.IPv6} {
				if allocation != nil {
					uuids[allocation.Addr.String()] = allocation.UUID
					fmt.Fprintf(&out, "%s gateway %s range %s\n", allocation.Addr, allocation.Gateway, allocation.Range)
				}
			}
			return out.String(), err
		}),
		"ipam/specific": command(func(_ *script.State, args []string) (string, error) {
			ctx, cancel := context.WithTimeout(context.Background(), allocTimeout)
			defer cancel()
			return "", a.Specific(ctx, netip.MustParseAddr(args[0]), args[1], "")
		}),
		"ipam/claim": command(func(_ *script.State, args []string) (string, error) {
			uuid := args[1]
			if uuid == "right" {
				uuid = uuids[args[0]]
			}
			return "", a.Claim([]ipam.Claim{{Addr: netip.MustParseAddr(args[0]), UUID: uuid, Attachment: args[2]}})
		}),
		"ipam/restore": command(func(_ *script.State, args []string) (string, error) {
			return "", a.Restore([]ipam.Claim{{Addr: netip.MustParseAddr(args[0]), Owner: args[1], Attachment: args[2]}})
		}),
		"ipam/restore-done": command(func(*script.State, []string) (string, error) {
			a.RestoreDone()
			return "", nil
		}),
		"ipam/release": command(func(_ *script.State, args []string) (string, error) {
			found, err := a.Release(netip.MustParseAddr(args[0]), "", args[1])
			return fmt.Sprintln("found", found), err
		}),
	})
}

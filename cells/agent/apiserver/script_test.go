package apiserver

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	upstream "github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/script"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/datapath/pinnedmaps"
	"github.com/waggle-net/waggle/pkg/endpoint"
	"github.com/waggle-net/waggle/pkg/ipam"
	"github.com/waggle-net/waggle/pkg/labels"
	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/tables/apiservers"
	"github.com/waggle-net/waggle/pkg/tables/attachments"
	"github.com/waggle-net/waggle/pkg/tables/backends"
	"github.com/waggle-net/waggle/pkg/tables/bpfendpoints"
	"github.com/waggle-net/waggle/pkg/tables/bpfmaps"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/cniconfig"
	"github.com/waggle-net/waggle/pkg/tables/desireddevices"
	"github.com/waggle-net/waggle/pkg/tables/desiredroutes"
	"github.com/waggle-net/waggle/pkg/tables/devices"
	"github.com/waggle-net/waggle/pkg/tables/endpointpolicies"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/endpointstates"
	"github.com/waggle-net/waggle/pkg/tables/flows"
	"github.com/waggle-net/waggle/pkg/tables/frontends"
	"github.com/waggle-net/waggle/pkg/tables/health"
	"github.com/waggle-net/waggle/pkg/tables/identities"
	"github.com/waggle-net/waggle/pkg/tables/ipamaddresses"
	"github.com/waggle-net/waggle/pkg/tables/ipcache"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
	"github.com/waggle-net/waggle/pkg/tables/masquerade"
	"github.com/waggle-net/waggle/pkg/tables/mtus"
	"github.com/waggle-net/waggle/pkg/tables/namedcidrs"
	"github.com/waggle-net/waggle/pkg/tables/nodeaddresses"
	"github.com/waggle-net/waggle/pkg/tables/nodehealth"
	"github.com/waggle-net/waggle/pkg/tables/nodeids"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/tables/policies"
	"github.com/waggle-net/waggle/pkg/tables/policyclasses"
	"github.com/waggle-net/waggle/pkg/tables/policyentries"
	"github.com/waggle-net/waggle/pkg/tables/services"
	"github.com/waggle-net/waggle/pkg/tables/sources"
	"github.com/waggle-net/waggle/pkg/tables/sysctls"
	"github.com/waggle-net/waggle/pkg/tables/unmanagedpods"
)

// TestScripts runs the API with tables that scripts fill.
func TestScripts(t *testing.T) {
	t.Parallel()
	celltest.Run(t, "testdata/*.txtar", func(testing.TB) []cell.Cell {
		return []cell.Cell{inputs(), cell.Module("api-server", "API under test",
			cell.ProvidePrivate(newHandler, newNodeClients), cell.Provide(callCommand))}
	})
}

// inputs provides the tables of other cells, and fakes of the called interfaces.
func inputs() cell.Cell {
	return cell.Provide(
		func() agentconfig.Agent {
			return agentconfig.Agent{EnableIPv4: true, EnableIPv6: true, NodeName: "node-1", ClusterName: "default",
				KubeProxyReplacement: true, NodePortMin: 30000, NodePortMax: 32767, Maglev: true, MaglevTableSize: 251,
				MasqueradeIPv4: true, HealthChecking: true}
		},
		func(db *statedb.DB, table statedb.RWTable[*endpoints.Endpoint]) (endpoint.Manager, ipam.Allocator, pinnedmaps.Maps) {
			m := &fakeManager{db: db, table: table, restored: make(chan struct{})}
			close(m.restored)
			return m, &fakeAllocator{}, fakeMaps{}
		},
		sources.NewTable, statedb.RWTable[sources.Source].ToTable,
		localnode.NewTable, statedb.RWTable[*localnode.LocalNode].ToTable,
		mtus.NewTable, statedb.RWTable[mtus.MTU].ToTable,
		endpoints.NewTable, statedb.RWTable[*endpoints.Endpoint].ToTable,
		endpointstates.NewTable, statedb.RWTable[*endpointstates.EndpointState].ToTable,
		attachments.NewTable, statedb.RWTable[*attachments.Attachment].ToTable,
		desireddevices.NewTable, statedb.RWTable[*desireddevices.Device].ToTable,
		desiredroutes.NewTable, statedb.RWTable[*desiredroutes.Route].ToTable,
		sysctls.NewTable, statedb.RWTable[*sysctls.Setting].ToTable,
		bpfendpoints.NewAddressTable, statedb.RWTable[*bpfendpoints.Address].ToTable,
		health.NewTable, statedb.RWTable[health.Status].ToTable,
		ipamaddresses.NewTable, statedb.RWTable[ipamaddresses.Address].ToTable,
		devices.NewTable, statedb.RWTable[*devices.Device].ToTable,
		masquerade.NewExclusionTable, statedb.RWTable[*masquerade.Exclusion].ToTable,
		nodeaddresses.NewTable, statedb.RWTable[nodeaddresses.Address].ToTable,
		nodes.NewTable, statedb.RWTable[*nodes.Node].ToTable,
		nodehealth.NewTable, statedb.RWTable[*nodehealth.Path].ToTable,
		nodeids.NewTable, statedb.RWTable[*nodeids.NodeID].ToTable,
		bpfmaps.NewTable, statedb.RWTable[*bpfmaps.Map].ToTable,
		cniconfig.NewTable, statedb.RWTable[cniconfig.Config].ToTable,
		identities.NewTable, statedb.RWTable[*identities.Identity].ToTable,
		identities.NewEndpointTable, statedb.RWTable[*identities.EndpointIdentity].ToTable,
		unmanagedpods.NewTable, statedb.RWTable[*unmanagedpods.Pod].ToTable,
		apiservers.NewTable, statedb.RWTable[apiservers.Server].ToTable,
		policies.NewTable, statedb.RWTable[*policies.Policy].ToTable,
		policyentries.NewTable, statedb.RWTable[*policyentries.Policy].ToTable,
		endpointpolicies.NewTable, statedb.RWTable[*endpointpolicies.EndpointPolicy].ToTable,
		namedcidrs.NewTable, statedb.RWTable[*namedcidrs.CIDR].ToTable,
		policyclasses.NewTable, statedb.RWTable[*policyclasses.Class].ToTable,
		ipcache.NewTable, statedb.RWTable[*ipcache.Entry].ToTable,
		flows.NewTable, statedb.RWTable[*flows.Flow].ToTable,
		services.NewTable, statedb.RWTable[*services.Service].ToTable,
		frontends.NewTable, statedb.RWTable[*frontends.Frontend].ToTable,
		backends.NewTable, statedb.RWTable[*backends.Backend].ToTable,
		k8s.NewPodTable, statedb.RWTable[*k8s.Pod].ToTable,
		k8s.NewEndpointSliceTable, statedb.RWTable[*k8s.EndpointSlice].ToTable,
		cilium.NewEndpointTable, statedb.RWTable[*cilium.Endpoint].ToTable,
		k8s.NewServiceTable, statedb.RWTable[*k8s.Service].ToTable,
		cilium.NewCIDRGroupTable, statedb.RWTable[*cilium.CIDRGroup].ToTable,
		cilium.NewPolicyTable, statedb.RWTable[*cilium.Policy].ToTable,
		func() policy.Options { return policy.Options{AllowLocalhost: true} },
		func() (*labels.Filter, error) { return labels.NewFilter(nil, nil) },
	)
}

// callCommand provides "call method path [body]", which prints the status and the body of the reply.
func callCommand(h http.Handler) upstream.ScriptCmdsOut {
	return upstream.NewScriptCmds(map[string]script.Cmd{"call": script.Command(script.CmdUsage{Summary: "Call the API"},
		func(_ *script.State, args ...string) (script.WaitFunc, error) {
			return func(*script.State) (string, string, error) {
				w := httptest.NewRecorder()
				h.ServeHTTP(w, httptest.NewRequest(args[0], args[1], strings.NewReader(strings.Join(args[2:], " "))))
				return fmt.Sprintf("%d %s\n", w.Code, strings.TrimSpace(w.Body.String())), "", nil
			}, nil
		})})
}

package policymaps

import (
	"context"
	"encoding/json"
	"os"
	"testing"

	upstream "github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/hive/script"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"go.uber.org/goleak"

	"github.com/waggle-net/waggle/cells/agent/driftledger"
	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/labels"
	"github.com/waggle-net/waggle/pkg/tables/attachments"
	"github.com/waggle-net/waggle/pkg/tables/bpfendpoints"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/endpointpolicies"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/identities"
	"github.com/waggle-net/waggle/pkg/tables/ipcache"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/nodeaddresses"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/tables/sources"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestScripts(t *testing.T) {
	t.Parallel()
	celltest.RunVirtual(t, "testdata/*.txtar", func(testing.TB) []cell.Cell {
		return []cell.Cell{
			driftledger.Cell,
			cell.Module("inputs", "Tables that other cells write",
				cell.Provide(
					k8s.NewNetworkPolicyTable, statedb.RWTable[*k8s.NetworkPolicy].ToTable,
					cilium.NewPolicyTable, statedb.RWTable[*cilium.Policy].ToTable,
					k8s.NewServiceTable, statedb.RWTable[*k8s.Service].ToTable,
					cilium.NewCIDRGroupTable, statedb.RWTable[*cilium.CIDRGroup].ToTable,
					k8s.NewNamespaceTable, statedb.RWTable[*k8s.Namespace].ToTable,
					k8s.NewEndpointSliceTable, statedb.RWTable[*k8s.EndpointSlice].ToTable,
					nodeaddresses.NewTable, statedb.RWTable[nodeaddresses.Address].ToTable,
					k8s.NewPodTable, statedb.RWTable[*k8s.Pod].ToTable,
					cilium.NewEndpointTable, statedb.RWTable[*cilium.Endpoint].ToTable,
					k8s.NewNodeTable, statedb.RWTable[*k8s.Node].ToTable,
					cilium.NewNodeTable, statedb.RWTable[*cilium.Node].ToTable,
					nodes.NewTable, statedb.RWTable[*nodes.Node].ToTable,
					ipcache.NewTable, statedb.RWTable[*ipcache.Entry].ToTable,
					cilium.NewIdentityTable, statedb.RWTable[*cilium.Identity].ToTable,
					sources.NewTable, statedb.RWTable[sources.Source].ToTable,
					identities.NewTable, statedb.RWTable[*identities.Identity].ToTable,
					identities.NewEndpointTable, statedb.RWTable[*identities.EndpointIdentity].ToTable,
					endpoints.NewTable, statedb.RWTable[*endpoints.Endpoint].ToTable,
					newAttachments, statedb.RWTable[*attachments.Attachment].ToTable,
					bpfendpoints.NewFactsTable, statedb.RWTable[*bpfendpoints.Facts].ToTable,
					func() agentconfig.Agent {
						return agentconfig.Agent{NodeName: "bee", ClusterName: "default", EnableIPv4: true, EnableIPv6: true}
					},
					func() (*labels.Filter, error) { return labels.NewFilter(nil, nil) },
				),
				cell.ProvidePrivate(newDatapath),
				cell.Provide(func(d *datapath) upstream.ScriptCmdsOut { return d.commands() }, newPolicyCommand),
				cell.Invoke(func(jobs job.Group, d *datapath) { jobs.Add(job.OneShot("follow", d.run)) }),
			),
			cell.Module("policy", "Under test",
				cell.ProvidePrivate(newFake, func(f *fakeMaps) (entryMaps, cidrMap, identityMap, classMap) {
					return fakeEntries{f}, fakeCIDRs{f}, fakeIdentities{f}, fakeClasses{f}
				}),
				implementation,
				cell.Provide(fakeCommands),
			),
		}
	})
}

// datapath applies the published rows of endpoints, as the cell endpoint-maps and its reconciler do: an endpoint in quarantine gets no facts.
type datapath struct {
	db     *statedb.DB
	from   statedb.Table[*endpointpolicies.EndpointPolicy]
	links  statedb.Table[*endpoints.Endpoint]
	facts  statedb.RWTable[*bpfendpoints.Facts]
	done   func(statedb.WriteTxn)
	paused chan bool
}

func newDatapath(db *statedb.DB, from statedb.Table[*endpointpolicies.EndpointPolicy], links statedb.Table[*endpoints.Endpoint],
	facts statedb.RWTable[*bpfendpoints.Facts]) *datapath {
	txn := db.WriteTxn(facts)
	defer txn.Commit()
	return &datapath{db, from, links, facts, facts.RegisterInitializer(txn, "test"), make(chan bool)}
}

func (d *datapath) run(ctx context.Context, _ cell.Health) error {
	paused := false
	for {
		snapshot := d.db.ReadTxn()
		rows, changed := d.from.AllWatch(snapshot)
		complete, initialized := d.from.Initialized(snapshot)
		if complete {
			initialized = nil // it is closed
		}
		if !paused {
			txn := d.db.WriteTxn(d.facts)
			for row := range rows {
				ep, _, found := d.links.Get(txn, endpoints.ByID(row.EndpointID))
				if !found || ep.Quarantine != "" {
					continue
				}
				_, _, _ = d.facts.Insert(txn, &bpfendpoints.Facts{ID: row.EndpointID, IfIndex: uint32(ep.HostIfIndex), Identity: row.Identity,
					Ingress: row.Ingress, Egress: row.Egress, PolicyRevision: row.Revision, Status: reconciler.StatusDone()})
			}
			if complete {
				d.done(txn)
			}
			txn.Commit()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-initialized:
		case paused = <-d.paused:
		}
	}
}

func (d *datapath) commands() upstream.ScriptCmdsOut {
	pause := func(summary string, paused bool) script.Cmd {
		return script.Command(script.CmdUsage{Summary: summary}, func(*script.State, ...string) (script.WaitFunc, error) {
			d.paused <- paused
			return nil, nil
		})
	}
	return upstream.NewScriptCmds(map[string]script.Cmd{
		"datapath/pause":  pause("Take nothing over", true),
		"datapath/resume": pause("Take over what is published", false),
	})
}

// newAttachments returns a table in which every hook runs a program of this agent.
func newAttachments(db *statedb.DB) (statedb.RWTable[*attachments.Attachment], error) {
	table, err := attachments.NewTable(db)
	if err != nil {
		return nil, err
	}
	txn := db.WriteTxn(table)
	defer txn.Commit()
	for i, a := range []attachments.Attachment{{Kind: attachments.Block, Device: "pod-links", Hook: "ingress"},
		{Kind: attachments.Block, Device: "pod-links", Hook: "egress"}, {Kind: attachments.TCX, Device: "waggle_host", Hook: "egress"}} {
		a.ProgramID, a.Status = uint32(i+1), reconciler.StatusDone()
		_, _, _ = table.Insert(txn, &a)
	}
	return table, nil
}

// newPolicyCommand returns a command that inserts a row that YAML cannot express: its rules are JSON.
func newPolicyCommand(db *statedb.DB, table statedb.RWTable[*cilium.Policy]) upstream.ScriptCmdOut {
	return upstream.NewScriptCmd("cilium/put", script.Command(script.CmdUsage{Summary: "Insert a policy of Cilium's", Args: "file"},
		func(s *script.State, args ...string) (script.WaitFunc, error) {
			text, err := os.ReadFile(s.Path(args[0]))
			if err != nil {
				return nil, err
			}
			row := &cilium.Policy{}
			if err := json.Unmarshal(text, row); err != nil {
				return nil, err
			}
			txn := db.WriteTxn(table)
			defer txn.Commit()
			_, _, err = table.Insert(txn, row)
			return nil, err
		}))
}

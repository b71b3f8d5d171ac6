package policymaps

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"testing"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/hivetest"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/cells/agent/driftledger"
	"github.com/waggle-net/waggle/cells/identity/identityallocator"
	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/hive"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/labels"
	"github.com/waggle-net/waggle/pkg/policy/policycompiler"
	"github.com/waggle-net/waggle/pkg/tables/apiservers"
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

// watchedKernel stores the policies of the kernel: entries, and the slots of endpoints. It outlives runs of the agent. It calls after when a single write is
// complete, because a packet may arrive between two writes.
type watchedKernel struct {
	*fakeMaps
	after func(*watchedKernel) // nil for no call
}

func newWatchedKernel() *watchedKernel {
	f := newFake()
	f.capacity = capacity{100_000, 1000}
	return &watchedKernel{fakeMaps: f}
}

func (k *watchedKernel) written() {
	if k.after != nil {
		k.after(k)
	}
}

// watchedEntries is the map of entries.
type watchedEntries struct {
	fakeEntries
	kernel *watchedKernel
}

func (w watchedEntries) Put(id uint32, e policycompiler.Entry) error {
	defer w.kernel.written()
	return w.fakeEntries.Put(id, e)
}

func (w watchedEntries) Delete(id uint32, k policycompiler.Key) error {
	defer w.kernel.written()
	return w.fakeEntries.Delete(id, k)
}

// watchedIdentities is the map of identities that policies know.
type watchedIdentities struct {
	fakeIdentities
	kernel *watchedKernel
}

func (w watchedIdentities) Put(word uint32, bits uint64) error {
	defer w.kernel.written()
	return w.fakeIdentities.Put(word, bits)
}

// watchedClasses is the map of the classes of identities.
type watchedClasses struct {
	fakeClasses
	kernel *watchedKernel
}

func (w watchedClasses) Put(id uint32, c policycompiler.Classes) error {
	defer w.kernel.written()
	return w.fakeClasses.Put(id, c)
}

// store writes slots with one call of the kernel, as the cell endpoint-maps does.
func (k *watchedKernel) store(slots map[uint16]slot) {
	k.mu.Lock()
	maps.Copy(k.slots, slots)
	k.log = append(k.log, fmt.Sprintf("put slots %v", slots))
	k.mu.Unlock()
	k.written()
}

// allows reports whether the kernel allows a first TCP packet to port 80.
func (k *watchedKernel) allows(q question) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	a, b := k.slots[q.from], k.slots[q.to]
	return a.identity != 0 && b.identity != 0 &&
		(q.part == ingress || k.verdict(a.ids[2], b.identity)) && (q.part == egress || k.verdict(b.ids[0], a.identity))
}

// verdict returns the verdict of one policy about one peer: denies take precedence over allows. The caller must hold mu.
func (k *watchedKernel) verdict(policy, peer uint32) (allowed bool) {
	const tcp, port = 6, 80
	if policy <= 1 {
		return policy == 1
	}
	classes := k.classes[peer]
	for _, who := range []policycompiler.Key{{}, {Kind: policycompiler.Identity, Identity: peer}, {Kind: policycompiler.Class, Identity: classes.Cluster},
		{Kind: policycompiler.Class, Identity: classes.Namespace}} {
		for _, what := range []policycompiler.Key{{}, {Protocol: tcp}, {Protocol: tcp, PortBits: 16, Port: port}} {
			what.Kind, what.Identity = who.Kind, who.Identity
			entry, found := k.entries[entryKey{policy, what}]
			if found && entry.Deny {
				return false
			}
			allowed = allowed || found
		}
	}
	return allowed
}

// agent is one run of the cells identityallocator and policymaps, with the tables around them.
type agent struct {
	cell.In

	DB         *statedb.DB
	Endpoints  statedb.RWTable[*endpoints.Endpoint]
	Pods       statedb.RWTable[*k8s.Pod]
	Namespaces statedb.RWTable[*k8s.Namespace]
	Policies   statedb.RWTable[*k8s.NetworkPolicy]
	Denies     statedb.RWTable[*cilium.Policy]
	Sources    statedb.RWTable[sources.Source]
	Servers    statedb.RWTable[apiservers.Server]
	Of         statedb.Table[*identities.EndpointIdentity]
	Published  statedb.Table[*endpointpolicies.EndpointPolicy]
	Facts      statedb.RWTable[*bpfendpoints.Facts]
	Filter     *labels.Filter
}

// startAgent runs the cells until stop is called. Before the start, prepare fills tables. client is nil without Kubernetes.
func startAgent(t *testing.T, k *watchedKernel, client *kubeapi.Client, dir string, prepare func(*agent)) (a *agent, stop func()) {
	t.Helper()
	a = &agent{}
	log := hivetest.Logger(t, hivetest.LogLevel(slog.LevelError))
	h := hive.New(celltest.Infrastructure(), driftledger.Cell, identityallocator.Cell,
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
				apiservers.NewTable, statedb.RWTable[apiservers.Server].ToTable,
				endpoints.NewTable, statedb.RWTable[*endpoints.Endpoint].ToTable,
				newAttachments, statedb.RWTable[*attachments.Attachment].ToTable,
				bpfendpoints.NewFactsTable, statedb.RWTable[*bpfendpoints.Facts].ToTable,
				func() *kubeapi.Client { return client },
				func() agentconfig.Agent {
					return agentconfig.Agent{NodeName: "bee", ClusterName: "default", EnableIPv4: true, EnableIPv6: true, StateDir: dir}
				},
			),
		),
		cell.Module("policy", "Under test",
			cell.ProvidePrivate(func() (entryMaps, cidrMap, identityMap, classMap) {
				return watchedEntries{fakeEntries{k.fakeMaps}, k}, fakeCIDRs{k.fakeMaps}, watchedIdentities{fakeIdentities{k.fakeMaps}, k},
					watchedClasses{fakeClasses{k.fakeMaps}, k}
			}),
			implementation,
		),
		cell.Module("datapath", "Takes over what is published",
			cell.Invoke(func(jobs job.Group, in agent) {
				*a = in
				txn := in.DB.WriteTxn(in.Facts)
				done := in.Facts.RegisterInitializer(txn, "test")
				txn.Commit()
				jobs.Add(job.OneShot("follow", func(ctx context.Context, _ cell.Health) error { return a.takeOver(ctx, k, done) }))
			})),
	)
	require.NoError(t, hive.Populate(h, log))
	prepare(a)
	require.NoError(t, h.Start(log, t.Context()))
	stop = sync.OnceFunc(func() { require.NoError(t, h.Stop(log, context.Background())) })
	t.Cleanup(stop)
	return a, stop
}

// takeOver writes each commit of endpoint-policies to the kernel with one call, and then inserts the facts.
func (a *agent) takeOver(ctx context.Context, k *watchedKernel, done func(statedb.WriteTxn)) error {
	for {
		snapshot := a.DB.ReadTxn()
		rows, changed := a.Published.AllWatch(snapshot)
		slots := map[uint16]slot{}
		for row := range rows {
			slots[row.EndpointID] = slot{ifindex: uint32(row.EndpointID), identity: row.Identity,
				ids:    [4]uint32{row.Ingress.Enforced.ID, row.Ingress.Audited.ID, row.Egress.Enforced.ID, row.Egress.Audited.ID},
				shapes: [4]uint32{row.Ingress.Enforced.Shape, row.Ingress.Audited.Shape, row.Egress.Enforced.Shape, row.Egress.Audited.Shape}}
		}
		if len(slots) > 0 {
			k.store(slots)
		}
		txn := a.DB.WriteTxn(a.Facts)
		for row := range a.Published.All(snapshot) {
			_, _, _ = a.Facts.Insert(txn, &bpfendpoints.Facts{ID: row.EndpointID, IfIndex: uint32(row.EndpointID), Identity: row.Identity,
				Ingress: row.Ingress, Egress: row.Egress, PolicyRevision: row.Revision, Status: reconciler.StatusDone()})
		}
		if complete, _ := a.Published.Initialized(snapshot); complete {
			done(txn)
		}
		txn.Commit()
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

// insert writes rows of one table in one commit.
func insert[R any](db *statedb.DB, table statedb.RWTable[R], rows ...R) {
	txn := db.WriteTxn(table)
	defer txn.Commit()
	for _, row := range rows {
		if _, _, err := table.Insert(txn, row); err != nil {
			panic(err)
		}
	}
}

// relabel gives an endpoint the labels in the rows of its pod and namespace, as the cell endpoint-manager does.
func (a *agent) relabel(id uint16) {
	txn := a.DB.WriteTxn(a.Endpoints)
	defer txn.Commit()
	ep, _, _ := a.Endpoints.Get(txn, endpoints.ByID(id))
	pod, _, found := a.Pods.Get(txn, k8s.PodByName(ep.PodName()))
	if !found {
		panic("no pod " + ep.PodName())
	}
	namespace, _, _ := a.Namespaces.Get(txn, k8s.NamespaceByName(ep.K8sNamespace))
	changed := ep.Clone()
	changed.Labels = labels.OfPod("default", pod, namespace)
	_, _, _ = a.Endpoints.Insert(txn, changed)
}

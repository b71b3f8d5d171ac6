package endpointmanager

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"sync"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/endpoint"
	"github.com/waggle-net/waggle/pkg/ipam"
	"github.com/waggle-net/waggle/pkg/statefile"
	"github.com/waggle-net/waggle/pkg/tables/apiservers"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/endpointstates"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
	"github.com/waggle-net/waggle/pkg/tables/sources"
)

// fileKind is the document kind of the endpoints' state files.
const fileKind = "endpoint"

type params struct {
	cell.In

	Log        *slog.Logger
	DB         *statedb.DB
	Settings   agentconfig.Agent
	Addresses  ipam.Allocator
	Endpoints  statedb.RWTable[*endpoints.Endpoint]
	States     statedb.Table[*endpointstates.EndpointState]
	Pods       statedb.Table[*k8s.Pod]
	Namespaces statedb.Table[*k8s.Namespace]
	Node       statedb.Table[*localnode.LocalNode]
	Live       livePods
	Servers    statedb.Table[apiservers.Server]
	Sources    statedb.Table[sources.Source]
	Kernel     kernel
}

// manager implements [endpoint.Manager].
type manager struct {
	log        *slog.Logger
	db         *statedb.DB
	addresses  ipam.Allocator
	endpoints  statedb.RWTable[*endpoints.Endpoint]
	states     statedb.Table[*endpointstates.EndpointState]
	pods       statedb.Table[*k8s.Pod]
	namespaces statedb.Table[*k8s.Namespace]
	node       statedb.Table[*localnode.LocalNode]
	cluster    string   // name of the cluster, for labels
	live       livePods // nil when Kubernetes is off
	servers    statedb.Table[apiservers.Server]
	sources    statedb.Table[sources.Source]
	kernel     kernel
	boot       string // boot id of the kernel; set before restored is closed
	files      *statefile.Store
	restored   chan struct{} // closed once rows, ids and addresses of the previous run are held

	// mu serializes changes of rows and files, from the check to the commit, so that two requests never find the same id or address free. It is not held while a
	// request waits for its endpoint, by readers, or during a call of another cell.
	mu     sync.Mutex
	lastID uint16
	// leftFiles has the ids of deleted endpoints whose file could not be removed.
	leftFiles  map[uint16]bool
	behind     map[uint16]bool // endpoints whose file lacks the labels of their row
	labels     *labelFeed      // nil before the first pass over labels
	fileLeft   chan struct{}   // wakes the job that removes leftFiles
	lastSerial uint64
}

func newManager(p params) *manager {
	return &manager{
		log: p.Log, db: p.DB, addresses: p.Addresses,
		endpoints: p.Endpoints, states: p.States, pods: p.Pods, namespaces: p.Namespaces, node: p.Node,
		cluster: p.Settings.ClusterName, live: p.Live, servers: p.Servers, sources: p.Sources, kernel: p.Kernel,
		files:    statefile.New(p.Settings.EndpointsDir(), fileKind),
		restored: make(chan struct{}), leftFiles: map[uint16]bool{}, behind: map[uint16]bool{}, fileLeft: make(chan struct{}, 1),
	}
}

var _ endpoint.Manager = (*manager)(nil)

// Restored implements [endpoint.Manager].
func (m *manager) Restored() <-chan struct{} { return m.restored }

// waitRestored does not check ctx when the endpoints are already restored: the server cancels the context of a client that has closed its sending side, but the
// client still reads the reply.
func (m *manager) waitRestored(ctx context.Context) error {
	select {
	case <-m.restored:
		return nil
	default:
	}
	select {
	case <-m.restored:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait until the state files are read: %w", context.Cause(ctx))
	}
}

// store writes one endpoint's file and then its row, so every endpoint that the datapath may have is on disk. The caller must hold mu.
func (m *manager) store(ep *endpoints.Endpoint) error {
	if err := m.files.Write(fileName(ep.ID), ep); err != nil {
		return err
	}
	delete(m.leftFiles, ep.ID)
	txn := m.db.WriteTxn(m.endpoints)
	defer txn.Abort()
	if _, _, err := m.endpoints.Insert(txn, ep); err != nil {
		return fmt.Errorf("store endpoint %d: %w", ep.ID, err)
	}
	txn.Commit()
	return nil
}

func fileName(id uint16) string { return strconv.Itoa(int(id)) + ".json" }

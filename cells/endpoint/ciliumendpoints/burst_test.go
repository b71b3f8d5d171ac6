package ciliumendpoints

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/hivetest"
	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/hive"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi/kubetest"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/endpointstates"
	"github.com/waggle-net/waggle/pkg/tables/identities"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
)

// world is a running cell with its tables.
type world struct {
	cell.In

	DB        *statedb.DB
	Endpoints statedb.RWTable[*endpoints.Endpoint]
	Of        statedb.RWTable[*identities.EndpointIdentity]
	States    statedb.RWTable[*endpointstates.EndpointState]
	Node      statedb.RWTable[*localnode.LocalNode]
}

// start runs the cell on a node with count ready endpoints.
func start(t *testing.T, server *kubetest.Server, count int) (w world) {
	t.Helper()
	log := hivetest.Logger(t, hivetest.LogLevel(slog.LevelError))
	h := hive.New(append([]cell.Cell{celltest.Infrastructure(), cell.Invoke(func(got world) { w = got })}, cells(t, server)...)...)
	require.NoError(t, h.Start(log, t.Context()))
	t.Cleanup(func() { require.NoError(t, h.Stop(log, context.Background())) })
	w.add(t, count)
	txn := w.DB.WriteTxn(w.Node)
	_, _, err := w.Node.Insert(txn, &localnode.LocalNode{Name: "bee", IPv4: localnode.Family{NodeIP: netip.MustParseAddr("192.0.2.1")}})
	require.NoError(t, err)
	txn.Commit()
	return w
}

// add inserts n ready endpoints.
func (w world) add(t *testing.T, n int) {
	t.Helper()
	txn := w.DB.WriteTxn(w.Endpoints, w.Of, w.States)
	defer txn.Commit()
	for i := 1; i <= n; i++ {
		ep := &endpoints.Endpoint{ID: uint16(i), ContainerID: fmt.Sprint("c", i), IfName: "eth0", K8sNamespace: "default",
			K8sPodName: fmt.Sprint("pod-", i), K8sUID: fmt.Sprint("uid-", i), IPv4: netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})}
		_, _, err1 := w.Endpoints.Insert(txn, ep)
		_, _, err2 := w.Of.Insert(txn, &identities.EndpointIdentity{EndpointID: ep.ID, Attachment: ep.AttachmentID(), Identity: 300})
		_, _, err3 := w.States.Insert(txn, &endpointstates.EndpointState{ID: ep.ID, Attachment: ep.AttachmentID(), State: endpointstates.Ready})
		for _, err := range []error{err1, err2, err3} {
			require.NoError(t, err)
		}
	}
}

func TestBurst_OneWriteForEachPodAndNoneLeft(t *testing.T) {
	t.Parallel()
	server := kubetest.New(t)
	w := start(t, server, 30)
	count := func(verb string) int { return requests(server, verb) }
	server.Await(t, "30 objects", func() bool { return len(server.List(kubeapi.CiliumEndpoints)) == 30 })
	txn := w.DB.WriteTxn(w.Endpoints)
	require.NoError(t, w.Endpoints.DeleteAll(txn))
	txn.Commit()
	server.Await(t, "no object", func() bool { return len(server.List(kubeapi.CiliumEndpoints)) == 0 })
	require.Equal(t, 30, count("create"))
	require.Equal(t, 30, count("delete"))
	require.Zero(t, count("patch")+count("update")+count("get"))
}

func requests(server *kubetest.Server, verb string) (n int) {
	for _, r := range server.Requests() {
		if r.Verb == verb && strings.HasPrefix(r.Resource, "ciliumendpoints") {
			n++
		}
	}
	return n
}

// After a restart all objects are already correct. An attempt to create each again would cost a write each, and nodes may restart together.
func TestBurst_ARestartWritesNothing(t *testing.T) {
	t.Parallel()
	server := kubetest.New(t)
	t.Run("first run", func(t *testing.T) {
		start(t, server, 30)
		server.Await(t, "30 objects", func() bool { return len(server.List(kubeapi.CiliumEndpoints)) == 30 })
	})
	w := start(t, server, 30)
	for more := 31; more <= 32; more++ { // the second object is written after all others were checked
		w.add(t, more)
		server.Await(t, "one more", func() bool { return len(server.List(kubeapi.CiliumEndpoints)) == more })
	}
	require.Equal(t, 32, requests(server, "create"), "30 of them in the first run")
	require.Equal(t, []int{0, 0, 0}, []int{requests(server, "get"), requests(server, "patch"), requests(server, "delete")})
}

// A server accepts writes without a reply, rejects some and is slow for others. In the end every pod has its object.
func TestBurst_FaultyServer_EveryPodHasObject(t *testing.T) {
	t.Parallel()
	server := kubetest.New(t)
	var n atomic.Int64
	server.Fault(func(r *http.Request) (int, string) {
		if r.Method == http.MethodGet || n.Load() > 40 {
			return 0, ""
		}
		switch n.Add(1) % 4 {
		case 0:
			return http.StatusInternalServerError, ""
		case 1:
			return http.StatusConflict, ""
		case 2:
			time.Sleep(20 * time.Millisecond)
		}
		return 0, ""
	})
	start(t, server, 20)
	server.Await(t, "20 objects", func() bool { return len(server.List(kubeapi.CiliumEndpoints)) == 20 })
}

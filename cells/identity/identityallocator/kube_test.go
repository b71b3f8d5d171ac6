package identityallocator

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/hivetest"
	"github.com/cilium/statedb"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/hive"
	"github.com/waggle-net/waggle/pkg/identity"
	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi/kubetest"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/identities"
)

// world is a running cell with its tables.
type world struct {
	DB        *statedb.DB
	Endpoints statedb.RWTable[*endpoints.Endpoint]
	Of        statedb.Table[*identities.EndpointIdentity]
	CRDs      statedb.RWTable[*cilium.Identity]
	Known     statedb.Table[*identities.Identity]
	restored  func(statedb.WriteTxn) // initializes the table endpoints
	stop      func()
}

// start runs the cell over a state directory. The server's objects are copied to cilium-identities.
func start(t *testing.T, server *kubetest.Server, dir string) *world {
	t.Helper()
	w := &world{}
	log := hivetest.Logger(t, hivetest.LogLevel(slog.LevelError))
	h := hive.New(celltest.Infrastructure(), Cell, inputs(), cell.Module("kube", "The API server",
		cell.Provide(func() *kubeapi.Client { return server.Client(t) }),
	), cell.Invoke(func(db *statedb.DB, eps statedb.RWTable[*endpoints.Endpoint], of statedb.Table[*identities.EndpointIdentity],
		crds statedb.RWTable[*cilium.Identity], known statedb.Table[*identities.Identity]) {
		w.DB, w.Endpoints, w.Of, w.CRDs, w.Known = db, eps, of, crds, known
		txn := db.WriteTxn(eps)
		defer txn.Commit()
		w.restored = eps.RegisterInitializer(txn, "test")
	}))
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	h.RegisterFlags(flags)
	require.NoError(t, flags.Parse([]string{"--state-dir=" + dir}))
	require.NoError(t, h.Start(log, t.Context()))
	stopped := false
	w.stop = func() {
		if !stopped {
			stopped = true
			require.NoError(t, h.Stop(log, context.Background()))
		}
	}
	t.Cleanup(w.stop)
	mirror(t, server, w.DB, w.CRDs)()
	return w
}

// add inserts n endpoints with the labels of app, numbered from first. The first call also completes the restored endpoints.
func (w *world) add(t *testing.T, first, n int, app func(i int) string) {
	t.Helper()
	txn := w.DB.WriteTxn(w.Endpoints)
	defer txn.Commit()
	for i := first; i < first+n; i++ {
		_, _, err := w.Endpoints.Insert(txn, &endpoints.Endpoint{ID: uint16(i), ContainerID: fmt.Sprint("c", i), IfName: "eth0",
			Labels: map[string]string{"k8s:app": app(i)}})
		require.NoError(t, err)
	}
	w.restored(txn)
}

func same(app string) func(int) string { return func(int) string { return app } }

// await waits until the identities of all n endpoints satisfy ok.
func (w *world) await(t *testing.T, what string, n int, ok func(*identities.EndpointIdentity) bool) map[uint16]uint32 {
	t.Helper()
	timeout := time.After(time.Minute)
	for {
		rows, changed := w.Of.AllWatch(w.DB.ReadTxn())
		got := map[uint16]uint32{}
		for row := range rows {
			if ok(row) {
				got[row.EndpointID] = row.Identity
			}
		}
		if len(got) == n {
			return got
		}
		select {
		case <-changed:
		case <-timeout:
			t.Fatalf("waited in vain: %s; have %v of %d", what, got, n)
		}
	}
}

func isReal(row *identities.EndpointIdentity) bool { return row.Source == identities.CRD }
func isOurs(row *identities.EndpointIdentity) bool {
	return row.Source == identities.Provisional && identity.IsProvisional(row.Identity)
}

func count(server *kubetest.Server, verb string) (n int) {
	for _, r := range server.Requests() {
		if r.Verb == verb && strings.HasPrefix(r.Resource, "ciliumidentities") {
			n++
		}
	}
	return n
}

func TestBurst_OneObjectPerLabelSet(t *testing.T) {
	t.Parallel()
	server := kubetest.New(t)
	w := start(t, server, t.TempDir())
	w.add(t, 1, 30, same("web"))
	got := w.await(t, "30 real identities", 30, isReal)
	require.Len(t, server.List(kubeapi.CiliumIdentities), 1)
	require.Equal(t, 1, count(server, "create"))
	for _, id := range got {
		require.Equal(t, got[1], id)
	}
}

// A pod with an identity always keeps one, whatever state the API server is in.
func TestOutage_NumbersAreReplacedWithoutGap(t *testing.T) {
	t.Parallel()
	server := kubetest.New(t)
	server.Stop()
	w := start(t, server, t.TempDir())
	txn := w.DB.WriteTxn(w.Of)
	changes, err := w.Of.Changes(txn)
	txn.Commit()
	require.NoError(t, err)
	defer changes.Close()
	w.add(t, 1, 5, func(i int) string { return fmt.Sprint("app-", i) })
	w.await(t, "provisional identities", 5, isOurs)
	server.Start(t)
	w.await(t, "real identities", 5, isReal)
	rows, _ := changes.Next(w.DB.ReadTxn())
	for change := range rows {
		require.False(t, change.Deleted, "endpoint %d had no identity for a moment", change.Object.EndpointID)
	}
	require.Len(t, server.List(kubeapi.CiliumIdentities), 5)
}

func TestRestart_APIServerUnavailable_KeepsNumbers(t *testing.T) {
	t.Parallel()
	server, dir := kubetest.New(t), t.TempDir()
	w := start(t, server, dir)
	w.add(t, 1, 3, func(i int) string { return fmt.Sprint("app-", i) })
	before := w.await(t, "real identities", 3, isReal)
	server.Stop()
	w.add(t, 4, 2, func(i int) string { return fmt.Sprint("app-", i) })
	maps.Copy(before, w.await(t, "provisional identities", 2, isOurs))
	w.stop()

	w = start(t, server, dir)
	w.add(t, 1, 5, func(i int) string { return fmt.Sprint("app-", i) })
	after := w.await(t, "identities of the previous run", 5, func(*identities.EndpointIdentity) bool { return true })
	require.Equal(t, before, after)
	server.Start(t)
	w.await(t, "real identities", 5, isReal)
	require.Len(t, server.List(kubeapi.CiliumIdentities), 5)
}

// A server with all kinds of failures: it creates an object and replies with an error, rejects, and is slow.
func TestCreate_FailingServer(t *testing.T) {
	t.Parallel()
	server := kubetest.New(t)
	var n atomic.Int64
	server.Fault(func(r *http.Request) (int, string) {
		if r.Method != http.MethodPost {
			return 0, ""
		}
		switch i := n.Add(1); {
		case i > 12:
			return 0, ""
		case i%3 == 0:
			return http.StatusConflict, ""
		case i%3 == 1:
			return http.StatusInternalServerError, ""
		}
		time.Sleep(20 * time.Millisecond)
		return http.StatusServiceUnavailable, ""
	})
	w := start(t, server, t.TempDir())
	w.add(t, 1, 4, func(i int) string { return fmt.Sprint("app-", i) })
	w.await(t, "real identities", 4, isReal)
	require.Len(t, server.List(kubeapi.CiliumIdentities), 4)
}

// rigCreator returns a creator and a snapshot of an empty table of objects.
func rigCreator(t *testing.T, server *kubetest.Server) (*creator, statedb.ReadTxn) {
	t.Helper()
	db := statedb.New()
	table, err := cilium.NewIdentityTable(db)
	require.NoError(t, err)
	return newCreator(server.Client(t), table), db.ReadTxn()
}

func putIdentity(server *kubetest.Server, id uint32, labels map[string]string) {
	server.Put(object(id, labels))
}

func TestCreate_NumberInUse(t *testing.T) {
	t.Parallel()
	server := kubetest.New(t)
	c, txn := rigCreator(t, server)
	web, db := map[string]string{"k8s:app": "web"}, map[string]string{"k8s:app": "db"}
	putIdentity(server, 300, db)
	w := &wanted{Labels: web, Prefer: 300}
	require.NoError(t, c.Update(t.Context(), txn, 0, w))
	require.NotEqual(t, uint32(300), w.ID, "it means other labels")
	require.GreaterOrEqual(t, w.ID, identity.ClusterMin)
	var made ciliumv2.CiliumIdentity
	require.True(t, server.Get(kubeapi.CiliumIdentities, "", strconv.Itoa(int(w.ID)), &made))
	require.Equal(t, web, made.SecurityLabels)

	again := &wanted{Labels: db, Prefer: 300}
	require.NoError(t, c.Update(t.Context(), txn, 0, again))
	require.Equal(t, uint32(300), again.ID, "it means the same")
	require.Len(t, server.List(kubeapi.CiliumIdentities), 2)
}

// If a request that succeeded without a reply were treated as failed, a second object would be created.
func TestCreate_SucceededRequestWithoutReply(t *testing.T) {
	t.Parallel()
	server := kubetest.New(t)
	c, txn := rigCreator(t, server)
	web := map[string]string{"k8s:app": "web"}
	lost := true
	server.Fault(func(r *http.Request) (int, string) {
		if r.Method == http.MethodPost && lost {
			lost = false
			putIdentity(server, c.tried[cilium.LabelsKey(web)], web)
			return http.StatusGatewayTimeout, ""
		}
		return 0, ""
	})
	w := &wanted{Labels: web}
	require.Error(t, c.Update(t.Context(), txn, 0, w.clone()))
	require.NoError(t, c.Update(t.Context(), txn, 0, w))
	require.Len(t, server.List(kubeapi.CiliumIdentities), 1)
	require.True(t, server.Get(kubeapi.CiliumIdentities, "", strconv.Itoa(int(w.ID)), nil))
}

func TestChoose_ReservedNumber_IsIgnored(t *testing.T) {
	t.Parallel()
	server := kubetest.New(t)
	putIdentity(server, identity.Host, map[string]string{"k8s:app": "web"})
	w := start(t, server, t.TempDir())
	w.add(t, 1, 1, same("web"))
	got := w.await(t, "a real identity", 1, isReal)
	require.GreaterOrEqual(t, got[1], identity.ClusterMin)
}

func TestChoose_LowestNumber_ReplacedWhenLabelsChange(t *testing.T) {
	t.Parallel()
	server := kubetest.New(t)
	web := map[string]string{"k8s:app": "web"}
	putIdentity(server, 400, web)
	w := start(t, server, t.TempDir())
	w.add(t, 1, 1, same("web"))
	require.Equal(t, uint32(400), w.await(t, "400", 1, isReal)[1])
	putIdentity(server, 300, web)
	w.await(t, "300", 1, func(r *identities.EndpointIdentity) bool { return r.Identity == 300 })
	server.Remove(kubeapi.CiliumIdentities, "", "400")
	putIdentity(server, 300, map[string]string{"k8s:app": "db"})
	got := w.await(t, "neither", 1, func(r *identities.EndpointIdentity) bool { return isReal(r) && r.Identity != 300 })
	require.NotEqual(t, uint32(300), got[1])
}

// Otherwise a writer of objects could choose how policies classify the pods of other users.
func TestChoose_InvalidLabels_AreIgnored(t *testing.T) {
	t.Parallel()
	server := kubetest.New(t)
	real := map[string]string{"k8s:a": "b", "k8s:c": "d"}
	for id, labels := range map[uint32]map[string]string{
		300: {"k8s:a": "b;k8s:c=d"}, 301: {"k8s:a=b;k8s:c": "d"}, 302: {"reserved:host": ""}, 303: {"cidr:10.0.0.0/8": ""}, 304: {},
		305: {"user:io.kubernetes.pod.namespace": "kube-system"}, 306: {"k8s:a": "b", "reserved:host": ""},
	} {
		putIdentity(server, id, labels)
	}
	require.Equal(t, cilium.LabelsKey(real), cilium.LabelsKey(map[string]string{"k8s:a": "b;k8s:c=d"}), "they read the same")
	w := start(t, server, t.TempDir())
	txn := w.DB.WriteTxn(w.Endpoints)
	_, _, err := w.Endpoints.Insert(txn, &endpoints.Endpoint{ID: 1, ContainerID: "c1", IfName: "eth0", Labels: real})
	require.NoError(t, err)
	w.restored(txn)
	txn.Commit()
	got := w.await(t, "a real identity", 1, isReal)
	require.NotContains(t, []uint32{300, 301}, got[1])
	for row := range w.Known.All(w.DB.ReadTxn()) {
		if row.Source == identities.CRD {
			require.Equal(t, got[1], row.ID)
			require.Equal(t, real, row.Labels)
		}
	}
}

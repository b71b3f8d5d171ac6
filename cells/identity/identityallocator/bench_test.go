package identityallocator

import (
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/endpointfeed"
	"github.com/waggle-net/waggle/pkg/labels"
	"github.com/waggle-net/waggle/pkg/loop"
	"github.com/waggle-net/waggle/pkg/tables/apiservers"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/identities"
	"github.com/waggle-net/waggle/pkg/testseed"
)

// rig is a controller without an API server, whose passes are run by the test.
type rig struct {
	*controller
	eps statedb.RWTable[*endpoints.Endpoint]
}

func newRig(tb testing.TB) *rig {
	tb.Helper()
	db := statedb.New()
	eps, err1 := endpoints.NewTable(db)
	crds, err2 := cilium.NewIdentityTable(db)
	servers, err3 := apiservers.NewTable(db)
	rows, err4 := newWantedTable(db)
	known, of, done, err5 := newTables(db)
	filter, err6 := labels.NewFilter(nil, nil)
	require.NoError(tb, errors.Join(err1, err2, err3, err4, err5, err6))
	c := newController(params{Config: DefaultConfig, Log: slog.New(slog.DiscardHandler), DB: db, Settings: agentconfig.Agent{StateDir: tb.TempDir()},
		Filter: filter, Endpoints: eps, CRDs: crds, Servers: servers, Wanted: rows, Identities: known, Of: of, Done: done})
	require.NoError(tb, c.numbers.load(c.Log))
	require.NoError(tb, c.subscribe())
	tb.Cleanup(c.mirror.Close)
	tb.Cleanup(c.rows.Close)
	return &rig{c, eps}
}

func (r *rig) insert(tb testing.TB, ep *endpoints.Endpoint) {
	tb.Helper()
	txn := r.DB.WriteTxn(r.eps)
	defer txn.Commit()
	_, _, err := r.eps.Insert(txn, ep)
	require.NoError(tb, err)
}

func (r *rig) delete(tb testing.TB, id uint16) {
	tb.Helper()
	txn := r.DB.WriteTxn(r.eps)
	defer txn.Commit()
	_, _, err := r.eps.Delete(txn, &endpoints.Endpoint{ID: id})
	require.NoError(tb, err)
}

func (r *rig) pass(tb testing.TB) input {
	tb.Helper()
	txn := r.DB.ReadTxn()
	in := r.read(&loop.Round{Txn: txn, Changed: statedb.NewWatchSet()})
	out := r.resolve(txn, in, time.Now())
	require.NoError(tb, r.numbers.save())
	require.NoError(tb, r.commit(txn, in, out))
	return in
}

func podOf(id, app int) *endpoints.Endpoint {
	return &endpoints.Endpoint{ID: uint16(id), ContainerID: fmt.Sprint(id), IfName: "eth0", Labels: map[string]string{
		"k8s:app": fmt.Sprint(app), "k8s:io.kubernetes.pod.namespace": "default",
		"k8s:io.cilium.k8s.policy.cluster": "default", "k8s:io.cilium.k8s.policy.serviceaccount": "default",
		"k8s:pod-template-hash": "x", "k8s:io.cilium.k8s.namespace.labels.kubernetes.io/metadata.name": "default"}}
}

// BenchmarkPass measures the passes of an ADD and of a DEL beside n other endpoints with 10 label sets.
func BenchmarkPass(b *testing.B) {
	for _, n := range []int{10, 200, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			r := newRig(b)
			for id := range n {
				r.insert(b, podOf(id+1, id%10))
			}
			r.pass(b)
			for b.Loop() {
				r.insert(b, podOf(n+1, 0))
				r.pass(b)
				r.delete(b, uint16(n+1))
				r.pass(b)
			}
			require.Equal(b, n, r.Of.NumObjects(r.DB.ReadTxn()))
		})
	}
}

// TestPass_ChangedEndpoints adds, changes and removes endpoints at random. Each endpoint has the number of its labels, and the label sets match the
// endpoints.
func TestPass_ChangedEndpoints(t *testing.T) {
	t.Parallel()
	random, r := testseed.New(t), newRig(t)
	r.pass(t)
	for range 1500 {
		for range 1 + random.IntN(3) {
			id, app := 1+random.IntN(8), random.IntN(4)
			if random.IntN(3) == 0 {
				r.delete(t, uint16(id))
				continue
			}
			ep := podOf(id, app)
			ep.ContainerID = fmt.Sprint(id + 8*random.IntN(2))
			if random.IntN(3) == 0 {
				ep.LabelsMissing = "those of its namespace"
			}
			r.insert(t, ep)
		}
		if key := cilium.LabelsKey(r.Filter.Relevant(podOf(1, random.IntN(4)).Labels)); random.IntN(5) == 0 { // the number is released
			delete(r.numbers.taken, r.numbers.byKey[key].ID)
			delete(r.numbers.byKey, key)
		}
		r.whole = time.Now() // no full pass, even on a slow machine
		require.False(t, r.pass(t).whole)
		txn := r.DB.ReadTxn()
		sets := map[string]members{}
		for ep := range r.eps.All(txn) {
			key := cilium.LabelsKey(r.Filter.Relevant(ep.Labels))
			of, found := identities.Of(txn, r.Of, ep.ID, ep.AttachmentID())
			require.True(t, found, "endpoint %d", ep.ID)
			require.Equal(t, r.numbers.byKey[key].ID, of.Identity, "endpoint %d", ep.ID)
			if sets[key] == nil {
				sets[key] = members{}
			}
			sets[key][ep.ID] = ep.LabelsMissing == ""
		}
		require.Equal(t, sets, r.sets)
		require.Equal(t, r.eps.NumObjects(txn), r.Of.NumObjects(txn), "rows of endpoints that are gone")
		require.Len(t, r.memo, r.eps.NumObjects(txn))
	}
}

// TestPass_FullPassOnceAMinute: a full pass writes a row whose change the change iterator missed.
func TestPass_FullPassOnceAMinute(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.insert(t, podOf(1, 0))
	r.pass(t)
	r.insert(t, podOf(2, 0))
	r.rows.UpTo(r.DB.ReadTxn(), statedb.NewWatchSet()) // as if the change had been missed
	r.pass(t)
	require.Equal(t, 1, r.Of.NumObjects(r.DB.ReadTxn()))
	r.whole = r.whole.Add(-endpointfeed.FullPassInterval)
	r.pass(t)
	require.Equal(t, 2, r.Of.NumObjects(r.DB.ReadTxn()))
}

package identityallocator

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/identity"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi/kubetest"
	"github.com/waggle-net/waggle/pkg/labels"
	"github.com/waggle-net/waggle/pkg/loop"
	"github.com/waggle-net/waggle/pkg/tables/apiservers"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/identities"
)

// many is larger than the number of identities of a cluster.
const many = 70_000

func labelsOfJob(i int) map[string]string {
	return map[string]string{"k8s:app": fmt.Sprint(i % 10), "k8s:job-name": fmt.Sprint("job-", i)}
}

// The backends that assign numbers of this node.
func TestNumbers_SeventyThousandLabelSets(t *testing.T) {
	t.Parallel()
	for source, fit := range map[identities.Source]int{
		identities.Memory:      int(identity.ClusterMax - identity.ClusterMin + 1),
		identities.Provisional: many,
	} {
		n := newNumbers(agentconfig.Agent{StateDir: t.TempDir()})
		begin := time.Now()
		given := 0
		for i := range many {
			got, err := n.allocate(labelsOfJob(i), source)
			if err != nil {
				require.ErrorIs(t, err, errFull)
				continue
			}
			given++
			require.Equal(t, source == identities.Provisional, identity.IsProvisional(got.ID))
		}
		require.Equal(t, fit, given)
		require.Len(t, n.taken, fit)
		t.Logf("%s: %d label sets in %s", source, many, time.Since(begin))

		// A released number is the next one that is assigned.
		n.retain(func(key string) bool { return key != cilium.LabelsKey(labelsOfJob(7)) })
		_, err := n.allocate(map[string]string{"k8s:app": "new"}, source)
		require.NoError(t, err)
	}
}

// manyRig is a controller whose passes are run by the test.
type manyRig struct {
	*controller
	eps  statedb.RWTable[*endpoints.Endpoint]
	crds statedb.RWTable[*cilium.Identity]
}

func newManyRig(t *testing.T, dir string, client *kubeapi.Client) *manyRig {
	t.Helper()
	db := statedb.New()
	eps, err1 := endpoints.NewTable(db)
	crds, err2 := cilium.NewIdentityTable(db)
	servers, err3 := apiservers.NewTable(db)
	rows, err4 := newWantedTable(db)
	known, of, done, err5 := newTables(db)
	filter, err6 := labels.NewFilter(nil, nil)
	require.NoError(t, errors.Join(err1, err2, err3, err4, err5, err6))
	c := newController(params{Config: DefaultConfig, Log: slog.New(slog.DiscardHandler), DB: db, Settings: agentconfig.Agent{StateDir: dir},
		Filter: filter, Endpoints: eps, CRDs: crds, Servers: servers, Wanted: rows, Identities: known, Of: of, Done: done, Client: client})
	require.NoError(t, c.numbers.load(c.Log))
	require.NoError(t, c.subscribe())
	return &manyRig{c, eps, crds}
}

// with adds endpoints with the labels of jobs.
func (r *manyRig) with(t *testing.T, from, to int) {
	t.Helper()
	txn := r.DB.WriteTxn(r.eps)
	defer txn.Commit()
	for i := from; i < to; i++ {
		_, _, err := r.eps.Insert(txn, &endpoints.Endpoint{ID: uint16(i + 1), ContainerID: fmt.Sprint(i), IfName: "eth0", Labels: labelsOfJob(i)})
		require.NoError(t, err)
	}
}

func (r *manyRig) pass(t *testing.T) output {
	t.Helper()
	txn := r.DB.ReadTxn()
	in := r.read(&loop.Round{Txn: txn, Changed: statedb.NewWatchSet()})
	out := r.resolve(txn, in, time.Now().Add(DefaultConfig.Grace))
	require.NoError(t, r.commit(txn, in, out))
	return out
}

func (r *manyRig) rows() map[uint16]uint32 {
	got := map[uint16]uint32{}
	for row := range r.Of.All(r.DB.ReadTxn()) {
		got[row.EndpointID] = row.Identity
	}
	return got
}

const jobsAreToBlame = "label k8s:job-name has 65,535 different values; exclude it with --labels=!job-name"

// Without Kubernetes: all local ids of endpoints are used, each with its own labels.
func TestMany_WithoutKubernetes(t *testing.T) {
	t.Parallel()
	r := newManyRig(t, t.TempDir(), nil)
	r.with(t, 0, 60_000)
	r.pass(t)
	before := r.rows()
	r.with(t, 60_000, 65_535)
	out := r.pass(t)

	after := r.rows()
	require.Len(t, after, 65_535, "each has an identity")
	for id, number := range before {
		require.Equal(t, number, after[id], "running pods are not touched")
	}
	require.Len(t, slices.DeleteFunc(slices.Collect(maps.Values(after)), func(n uint32) bool { return !identity.IsProvisional(n) }), 255)
	require.Len(t, slices.Compact(slices.Sorted(maps.Values(after))), 65_535, "and no two have the same")
	problems := slices.DeleteFunc(out.problems, func(err error) bool { return err == nil })
	require.Len(t, problems, 255)
	require.ErrorContains(t, problems[0], jobsAreToBlame)
	whys := 0
	for row := range r.Of.All(r.DB.ReadTxn()) {
		if row.Source == identities.Provisional {
			whys++
			require.Contains(t, row.Why, jobsAreToBlame)
		}
	}
	require.Equal(t, 255, whys)
}

// The objects of a large cluster are written in several transactions: readers and other writers of the table do not wait for all.
func TestCommit_ManyObjects_Portions(t *testing.T) {
	t.Parallel()
	r := newManyRig(t, t.TempDir(), kubetest.New(t).Client(t))
	r.fill(t)
	in := r.read(&loop.Round{Txn: r.DB.ReadTxn(), Changed: statedb.NewWatchSet()})
	all := in.objects
	require.Greater(t, len(all), 2*portion)
	require.NoError(t, r.commitAhead(&in))
	require.NotEmpty(t, in.objects)
	require.LessOrEqual(t, len(in.objects), portion)
	usable := func(changes []statedb.Change[*cilium.Identity]) int {
		ids := map[uint32]bool{}
		for _, c := range changes {
			if inRange(c.Object) && valid(c.Object) {
				ids[c.Object.ID] = true
			}
		}
		return len(ids)
	}
	require.Equal(t, usable(all[:len(all)-len(in.objects)]), r.Identities.NumObjects(r.DB.ReadTxn()))

	require.NoError(t, r.commit(r.DB.ReadTxn(), input{objects: all}, output{}))
	require.Equal(t, usable(all)+len(identity.Fixed()), r.Identities.NumObjects(r.DB.ReadTxn()))
}

// With Kubernetes: other nodes have created an identity for every number. Existing endpoints of this node keep their identities, also after a restart. New
// endpoints work on this node, and the error names the label that causes the identities.
func TestMany_ObjectsOfOtherNodes(t *testing.T) {
	t.Parallel()
	dir, client := t.TempDir(), kubetest.New(t).Client(t)
	r := newManyRig(t, dir, client)
	r.fill(t)
	r.with(t, 0, 100) // labels with an object
	r.pass(t)
	before := r.rows()
	require.Len(t, before, 100)
	require.NoError(t, r.numbers.save())

	ops := newCreator(client, r.crds)
	r.with(t, 69_000-65_000, 69_100-65_000) // labels with an object
	addNew := func(r *manyRig) {
		txn := r.DB.WriteTxn(r.eps)
		defer txn.Commit()
		for i := range 50 {
			_, _, err := r.eps.Insert(txn, &endpoints.Endpoint{ID: uint16(10_000 + i), ContainerID: fmt.Sprint("new", i), IfName: "eth0",
				Labels: map[string]string{"k8s:app": "new", "k8s:job-name": fmt.Sprint("new-", i)}})
			require.NoError(t, err)
		}
	}
	addNew(r)
	r.pass(t)
	begin := time.Now()
	r.attempt(t, ops, 50)
	t.Logf("50 label sets were refused in %s", time.Since(begin))
	out := r.pass(t)
	require.NoError(t, r.numbers.save())
	for id, number := range before {
		require.Equal(t, number, r.rows()[id])
	}
	problems := slices.DeleteFunc(out.problems, func(err error) bool { return err == nil })
	require.Len(t, problems, 50)
	require.ErrorContains(t, problems[0], "all numbers of 256 to 65535 are taken: label k8s:job-name has 65,280 different values; "+
		"exclude it with --labels=!job-name")
	all := r.rows()
	require.Len(t, all, 250)
	require.True(t, identity.IsProvisional(all[10_000]))
	row, _, _ := r.Of.Get(r.DB.ReadTxn(), identities.ByEndpoint(10_000))
	require.Equal(t, "all numbers of 256 to 65535 are taken: label k8s:job-name has 65,280 different values; exclude it with "+
		"--labels=!job-name", row.Why)

	// A restart keeps all numbers, with and without the objects.
	for _, seen := range []bool{false, true} {
		again := newManyRig(t, dir, client)
		if seen {
			again.fill(t)
		}
		again.with(t, 0, 100)
		again.with(t, 4_000, 4_100)
		addNew(again)
		again.pass(t)
		require.Equal(t, all, again.rows())
	}

	// When a number is free again, the next attempt gets it.
	txn := r.DB.WriteTxn(r.crds)
	_, _, err := r.crds.Delete(txn, &cilium.Identity{ID: 65_535})
	require.NoError(t, err)
	txn.Commit()
	for w := range r.Wanted.All(r.DB.ReadTxn()) {
		w = w.clone()
		require.NoError(t, ops.Update(t.Context(), r.DB.ReadTxn(), 0, w))
		require.Equal(t, uint32(65_535), w.ID)
		break
	}
}

// fill creates an object for every number, with the labels of jobs from 0.
func (r *manyRig) fill(t *testing.T) {
	t.Helper()
	txn := r.DB.WriteTxn(r.crds)
	defer txn.Commit()
	for id := identity.ClusterMin; id < identity.ClusterMin+many; id++ { // some numbers are outside the range of a cluster
		_, _, err := r.crds.Insert(txn, &cilium.Identity{ID: id, Labels: labelsOfJob(int(id - identity.ClusterMin))})
		require.NoError(t, err)
	}
}

// attempt updates n rows like the reconciler.
func (r *manyRig) attempt(t *testing.T, ops *creator, n int) {
	t.Helper()
	txn := r.DB.WriteTxn(r.Wanted)
	defer txn.Commit()
	rows := statedb.Collect(r.Wanted.All(txn))
	require.Len(t, rows, n)
	for _, w := range rows {
		w = w.clone()
		err := ops.Update(t.Context(), txn, 0, w)
		require.Error(t, err)
		_, _, err = r.Wanted.Insert(txn, w.withStatus(reconciler.StatusError(err)))
		require.NoError(t, err)
	}
}

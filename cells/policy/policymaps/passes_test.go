package policymaps

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/tables/bpfendpoints"
	"github.com/waggle-net/waggle/pkg/tables/endpointpolicies"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/identities"
)

// roundCounter counts the completed rounds of a controller, which reports its health once in each.
type roundCounter struct {
	cell.Health
	completed atomic.Int64
}

func (r *roundCounter) OK(string)              { r.completed.Add(1) }
func (r *roundCounter) Degraded(string, error) { r.completed.Add(1) }

// publishedRows records how many rounds were complete when the row of an endpoint was written last.
type publishedRows struct {
	statedb.RWTable[*endpointpolicies.EndpointPolicy]
	rounds *roundCounter
	id     uint16
	at     atomic.Int64
}

func (p *publishedRows) Insert(txn statedb.WriteTxn, row *endpointpolicies.EndpointPolicy) (*endpointpolicies.EndpointPolicy, bool, error) {
	if row.EndpointID == p.id {
		p.at.Store(p.rounds.completed.Load())
	}
	return p.RWTable.Insert(txn, row)
}

// newEndpoint are the rows of an endpoint that is added.
type newEndpoint struct {
	endpoint *endpoints.Endpoint
	of       *identities.EndpointIdentity
	identity *identities.Identity
}

const newID = 31

// newEndpointOf returns the rows of endpoint newID with the labels of an application.
func newEndpointOf(app int) newEndpoint {
	all, number := labelsOf(app, app%10), uint32(256+app)
	return newEndpoint{
		endpoint: &endpoints.Endpoint{ID: newID, ContainerID: fmt.Sprint(newID), IfName: "eth0", HostIfIndex: newID, Labels: all},
		of:       &identities.EndpointIdentity{EndpointID: newID, Attachment: fmt.Sprint(newID, ":eth0"), Identity: number, Labels: all},
		identity: &identities.Identity{ID: number, Labels: all},
	}
}

// TestRun_ADD_WaitsForOneRound: the first round that reads a new endpoint and its identity publishes the policy, with all entries in the maps. The datapath
// reports it applied without another round. One later round cleans up.
func TestRun_ADD_WaitsForOneRound(t *testing.T) {
	t.Parallel()
	for name, app := range map[string]int{ // the applications 0 to 29 have endpoints, 0 to 39 have policies
		"labels of another endpoint":      1,
		"new identity with a policy":      35,
		"new identity without any policy": 45,
	} {
		for _, identityLater := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, identity later %t", name, identityLater), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) { testADD(t, newEndpointOf(app), identityLater) })
			})
		}
	}
}

func testADD(t *testing.T, a newEndpoint, identityLater bool) {
	w := newBench(t, 30, 4)
	rounds, published := w.start(t)
	row := func() *endpointpolicies.EndpointPolicy {
		row, _, _ := w.Published.Get(w.DB.ReadTxn(), endpointpolicies.ByEndpoint(newID))
		return row
	}
	applied := func() bool {
		f, _, found := w.facts.Get(w.DB.ReadTxn(), bpfendpoints.FactsByID(newID))
		return found && f.Status.Kind == reconciler.StatusKindDone && f.Ingress == row().Ingress && f.PolicyRevision == row().Revision
	}
	if identityLater { // rounds evaluate the endpoint, and cannot publish it
		put(t, w.DB, w.endpoints, a.endpoint)
		synctest.Wait()
		require.Nil(t, row())
	}
	before := rounds.completed.Load()
	w.insertTogether(a, !identityLater)
	synctest.Wait()
	first := row()
	require.NotNil(t, first)
	require.Empty(t, first.Error)
	require.Equal(t, a.of.Identity, first.Identity)
	require.Equal(t, before, published.at.Load(), "the number of rounds before the one that has written the row last")
	afterRow := rounds.completed.Load()

	w.apply(t, newID, reconciler.StatusPending()) // the datapath applies a row in two writes
	synctest.Wait()
	require.Equal(t, afterRow, rounds.completed.Load(), "no round is possible before the second write")
	w.apply(t, newID, reconciler.StatusDone())
	require.True(t, applied())
	synctest.Wait()
	require.True(t, applied(), "a later round changed the row")
	require.LessOrEqual(t, rounds.completed.Load()-before, int64(2), "the publishing round and one that cleans up; the rows that they write begin no other")
}

// insertTogether inserts the rows in one commit.
func (w *bench) insertTogether(a newEndpoint, endpointToo bool) {
	txn := w.DB.WriteTxn(w.endpoints, w.of, w.identities)
	defer txn.Commit()
	if endpointToo {
		_, _, _ = w.endpoints.Insert(txn, a.endpoint)
	}
	_, _, _ = w.identities.Insert(txn, a.identity)
	_, _, _ = w.of.Insert(txn, a.of)
}

// start runs the loop of a new controller until the test ends. It returns when the loop waits for changes.
func (w *bench) start(t *testing.T) (*roundCounter, *publishedRows) {
	t.Helper()
	health, _ := cell.NewSimpleHealth()
	rounds := &roundCounter{Health: health}
	rows := &publishedRows{RWTable: w.Published, rounds: rounds, id: newID}
	p := w.params
	p.Published = rows
	c, done := newController(p), make(chan error)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { done <- c.run(ctx, rounds) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	time.Sleep(10 * time.Second) // until the controller has all inputs and looks no longer for changes
	synctest.Wait()
	require.Positive(t, rounds.completed.Load())
	return rounds, rows
}

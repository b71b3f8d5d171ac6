package ciliumendpoints

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/endpointstates"
	"github.com/waggle-net/waggle/pkg/tables/identities"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
	"github.com/waggle-net/waggle/pkg/testseed"
)

// rig is a controller whose passes are run by the test.
type rig struct {
	*controller
	endpoints statedb.RWTable[*endpoints.Endpoint]
	of        statedb.RWTable[*identities.EndpointIdentity]
	states    statedb.RWTable[*endpointstates.EndpointState]
	pods      statedb.RWTable[*k8s.Pod]
	nodes     statedb.RWTable[*localnode.LocalNode]
}

func newRig(tb testing.TB) *rig {
	tb.Helper()
	db := statedb.New()
	eps, err1 := endpoints.NewTable(db)
	of, err2 := identities.NewEndpointTable(db)
	states, err3 := endpointstates.NewTable(db)
	pods, err4 := k8s.NewPodTable(db)
	nodes, err5 := localnode.NewTable(db)
	wanted, done, err6 := newTable(db)
	require.NoError(tb, errors.Join(err1, err2, err3, err4, err5, err6))
	r := &rig{newController(params{DB: db, Endpoints: eps, Of: of, States: states, Pods: pods, Node: nodes, Wanted: wanted, Done: done}),
		eps, of, states, pods, nodes}
	require.NoError(tb, r.subscribe())
	tb.Cleanup(func() { r.feed.close() })
	put(tb, r, nodes, &localnode.LocalNode{Name: "bee", IPv4: localnode.Family{NodeIP: netip.MustParseAddr("192.0.2.1")}})
	return r
}

func put[R any](tb testing.TB, r *rig, table statedb.RWTable[R], row R) {
	tb.Helper()
	txn := r.DB.WriteTxn(table)
	defer txn.Commit()
	_, _, err := table.Insert(txn, row)
	require.NoError(tb, err)
}

func drop[R any](tb testing.TB, r *rig, table statedb.RWTable[R], row R) {
	tb.Helper()
	txn := r.DB.WriteTxn(table)
	defer txn.Commit()
	_, _, err := table.Delete(txn, row)
	require.NoError(tb, err)
}

// quiet is a [cell.Health] that discards reports.
type quiet struct{ cell.Health }

func (quiet) OK(string)              {}
func (quiet) Degraded(string, error) {}

func (r *rig) step(tb testing.TB) {
	tb.Helper()
	txn := r.DB.ReadTxn()
	r.follow(txn, statedb.NewWatchSet())
	require.NoError(tb, r.pass(txn, quiet{}, true))
}

// rows returns the desired parts of all rows, by name.
func (r *rig) rows() map[string]object {
	all := map[string]object{}
	for row := range r.Wanted.All(r.DB.ReadTxn()) {
		all[row.Key()] = *row.Clone()
	}
	return all
}

func endpointOf(id, pod int, container string) *endpoints.Endpoint {
	return &endpoints.Endpoint{ID: uint16(id), ContainerID: container, IfName: "eth0", K8sNamespace: "default", K8sPodName: fmt.Sprint("pod-", pod),
		K8sUID: fmt.Sprint("uid-", pod), IPv4: netip.AddrFrom4([4]byte{10, 0, byte(id >> 8), byte(id)})}
}

// someChange changes a row of one of few endpoints and pods. An id may move to an endpoint of another pod, and a pod may have several endpoints.
func (r *rig) someChange(t *testing.T, random *rand.Rand) {
	id, pod := 1+random.IntN(5), 1+random.IntN(4)
	container := fmt.Sprint(id, "-", random.IntN(2))
	switch random.IntN(9) {
	case 0, 1:
		ep := endpointOf(id, pod, container)
		ep.Serial = random.Uint64N(9)
		if random.IntN(3) == 0 {
			ep.K8sUID = "" // only the table of pods has the UID
		}
		if random.IntN(5) == 0 {
			ep.K8sPodName = ""
		}
		put(t, r, r.endpoints, ep)
	case 2:
		drop(t, r, r.endpoints, &endpoints.Endpoint{ID: uint16(id)})
	case 3:
		put(t, r, r.of, &identities.EndpointIdentity{EndpointID: uint16(id), Attachment: container + ":eth0", Identity: uint32(300 + random.IntN(3))})
	case 4:
		put(t, r, r.states, &endpointstates.EndpointState{ID: uint16(id), Attachment: container + ":eth0", State: endpointstates.Ready})
	case 5:
		drop(t, r, r.states, &endpointstates.EndpointState{ID: uint16(id)})
	case 6:
		put(t, r, r.pods, &k8s.Pod{Namespace: "default", Name: fmt.Sprint("pod-", pod), UID: fmt.Sprint("uid-", pod),
			ServiceAccount: fmt.Sprint("sa-", random.IntN(2))})
	case 7:
		drop(t, r, r.pods, &k8s.Pod{Namespace: "default", Name: fmt.Sprint("pod-", pod)})
	case 8:
		put(t, r, r.nodes, &localnode.LocalNode{Name: "bee", IPv4: localnode.Family{NodeIP: netip.AddrFrom4([4]byte{192, 0, 2, byte(1 + random.IntN(2))})}})
	}
}

// TestPass_MissesNoPod checks that after each pass a pass over all pods changes nothing and finds the same pods without a UID.
func TestPass_MissesNoPod(t *testing.T) {
	t.Parallel()
	random, r := testseed.New(t), newRig(t)
	seen := 0
	for n := range 2000 {
		for range 1 + random.IntN(3) {
			r.someChange(t, random)
		}
		r.step(t)
		rows, nameless := r.rows(), fmt.Sprint(r.nameless)
		r.whole = time.Time{}
		r.step(t)
		require.Equal(t, rows, r.rows(), "after change %d", n)
		require.Equal(t, nameless, fmt.Sprint(r.nameless), "after change %d", n)
		seen += len(rows)
	}
	require.NotZero(t, seen)
}

// BenchmarkPass measures the passes of an ADD and of a DEL beside n other endpoints.
func BenchmarkPass(b *testing.B) {
	for _, n := range []int{10, 200, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			r := newRig(b)
			add := func(i int) {
				ep := endpointOf(i, i, fmt.Sprint("c", i))
				put(b, r, r.endpoints, ep)
				put(b, r, r.of, &identities.EndpointIdentity{EndpointID: ep.ID, Attachment: ep.AttachmentID(), Identity: 300})
				put(b, r, r.states, &endpointstates.EndpointState{ID: ep.ID, Attachment: ep.AttachmentID(), State: endpointstates.Ready})
			}
			for i := range n {
				add(i + 1)
			}
			r.step(b)
			for b.Loop() {
				add(n + 1)
				r.step(b)
				drop(b, r, r.endpoints, &endpoints.Endpoint{ID: uint16(n + 1)})
				r.step(b)
			}
			require.Equal(b, n, r.Wanted.NumObjects(r.DB.ReadTxn()))
		})
	}
}

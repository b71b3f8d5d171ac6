package endpointmanager

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/sources"
	"github.com/waggle-net/waggle/pkg/testseed"
)

// attach stores an endpoint of a pod like a request, without waiting for the row of the pod.
func (r *rig) attach(tb testing.TB, n int, restored bool) {
	tb.Helper()
	ep := fromRequest(request(n))
	ep.ID, ep.Restored = uint16(n), restored
	if r.live != nil {
		ep.LabelsMissing = "those of its pod"
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	require.NoError(tb, r.store(ep))
}

func drop[R any](tb testing.TB, r *rig, table statedb.RWTable[R], row R) {
	tb.Helper()
	txn := r.db.WriteTxn(table)
	defer txn.Commit()
	_, _, err := table.Delete(txn, row)
	require.NoError(tb, err)
}

// someChange changes an endpoint, a pod, a namespace, or the state of their sources.
func (r *rig) someChange(t *testing.T, random *rand.Rand) {
	n := 1 + random.IntN(6)
	pod := &k8s.Pod{Namespace: "default", Name: fmt.Sprint("pod-", n), UID: fmt.Sprint("uid-", n),
		Labels: map[string]string{"app": fmt.Sprint(random.IntN(3))}}
	if random.IntN(4) == 0 {
		pod.UID = "another"
	}
	if random.IntN(2) == 0 {
		pod.Ports = []k8s.ContainerPort{{Name: "web", Protocol: "TCP", Number: uint16(80 + random.IntN(2))}}
	}
	switch random.IntN(10) {
	case 0, 1:
		r.attach(t, n, random.IntN(2) == 0)
	case 2:
		drop(t, r, r.endpoints, &endpoints.Endpoint{ID: uint16(n)})
	case 3, 4, 5:
		r.setPod(t, pod)
	case 6:
		drop(t, r, r.pods, pod)
	case 7:
		r.setNamespace(t, &k8s.Namespace{Name: "default", Labels: map[string]string{"team": fmt.Sprint(random.IntN(3))}})
	case 8:
		drop(t, r, r.spaces, &k8s.Namespace{Name: "default"})
	case 9:
		state := []sources.State{sources.Synced, sources.Snapshot, sources.Waiting}[random.IntN(3)]
		table := []string{r.pods.Name(), r.spaces.Name()}[random.IntN(2)]
		insert(t, r.db, r.sources, sources.Source{Table: table, Producer: "watch", State: state, WaitingFor: "a server"})
	}
}

// TestRefreshLabels_MissesNoEndpoint checks that after each pass a pass over all endpoints changes nothing and finds the same endpoints incomplete.
func TestRefreshLabels_MissesNoEndpoint(t *testing.T) {
	t.Parallel()
	for name, live := range map[string]livePods{"with Kubernetes": getPodReturns(nil, nil), "without": nil} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			random, r := testseed.New(t), started(t, t.TempDir())
			r.live = live
			for n := range 400 {
				for range 1 + random.IntN(3) {
					r.someChange(t, random)
				}
				_, incomplete, err := r.refreshLabels()
				require.NoError(t, err)
				rows := r.rows()
				r.labels.whole = time.Time{}
				_, all, err := r.refreshLabels()
				require.NoError(t, err)
				require.Equal(t, rows, r.rows(), "after change %d", n)
				require.Equal(t, all, incomplete, "after change %d", n)
			}
		})
	}
}

// BenchmarkRefreshLabels measures the change of a pod that changes no label, beside n other endpoints.
func BenchmarkRefreshLabels(b *testing.B) {
	for _, n := range []int{10, 200, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			r := withKubernetes(b, getPodReturns(nil, nil))
			pod := func(i int) *k8s.Pod {
				return &k8s.Pod{Namespace: "default", Name: fmt.Sprint("pod-", i), UID: fmt.Sprint("uid-", i),
					Labels: map[string]string{"app": "web", "pod-template-hash": "abc", "version": "v1"}}
			}
			for i := range n {
				r.setPod(b, pod(i+1))
				r.attach(b, i+1, false)
			}
			_, _, err := r.refreshLabels()
			require.NoError(b, err)
			for b.Loop() {
				r.setPod(b, pod(1))
				_, _, _ = r.refreshLabels()
			}
		})
	}
}

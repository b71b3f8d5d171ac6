package endpointmanager

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/endpointfeed"
	"github.com/waggle-net/waggle/pkg/tables/devices"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/testseed"
)

// link adds, changes or removes a link in the fake kernel and in the table devices.
func (s *scene) link(tb testing.TB, index int, name string) {
	tb.Helper()
	if name == "" {
		delete(s.kernel.names, index)
		drop(tb, s.rig, s.devices, &devices.Device{Index: index})
		return
	}
	s.kernel.names[index] = name
	insert(tb, s.db, s.devices, &devices.Device{Index: index, Name: name, Type: "veth"})
}

// TestCollect_MissesNoEndpoint scans marked endpoints until no mark is left. A scan of all endpoints then finds the same suspects and changes no row. One scan
// can require another one: an endpoint whose quarantine has ended may be the younger sandbox of a pod that was scanned before.
func TestCollect_MissesNoEndpoint(t *testing.T) {
	t.Parallel()
	const n = 6
	random, s := testseed.New(t), newScene(t, n)
	feed, err := s.follow()
	require.NoError(t, err)
	defer feed.close()
	require.Nil(t, feed.next(s.db.ReadTxn(), statedb.NewWatchSet(), s.now))
	partial := 0
	for step := range 1500 {
		for range 1 + random.IntN(3) {
			i := 1 + random.IntN(n)
			switch random.IntN(8) {
			case 0:
				s.link(t, i, "")
			case 1, 2:
				s.link(t, i, hostName(i))
			case 3:
				s.link(t, i, "renamed")
			case 4:
				s.pod(t, i, random.IntN(2) == 0)
			case 5: // two sandboxes of one pod
				insert(t, s.db, s.pods, &k8s.Pod{Namespace: "default", Name: "pod-1", UID: fmt.Sprint("uid-", 1+random.IntN(2))})
			case 6:
				if eps := s.rows(); len(eps) > 0 {
					require.NoError(t, s.remove(eps[random.IntN(len(eps))]))
				}
			case 7:
				q := request(i)
				q.NetnsPath, q.NetnsInode = netns(i), uint64(1000+i)
				switch i {
				case 2:
					q.K8sPodName = "pod-1"
				case 3:
					q.K8sNamespace, q.K8sPodName, q.K8sUID = "", "", "" // a pod outside Kubernetes
				}
				s.rig.live = nil // attach must not wait for the row of the pod
				_, _ = s.Create(t.Context(), q)
				s.rig.live = noLive
			}
		}
		s.now = s.now.Add(time.Duration(random.IntN(6)) * time.Second)
		for first := true; ; first = false {
			marked := feed.next(s.db.ReadTxn(), statedb.NewWatchSet(), s.now)
			if marked != nil && len(marked) == 0 && !first {
				break
			}
			if marked != nil && first {
				partial++
			}
			require.NoError(t, s.look(s.db.ReadTxn(), s.suspects, marked, s.now))
		}
		rows, suspects := s.rows(), maps.Clone(s.suspects)
		require.NoError(t, s.look(s.db.ReadTxn(), suspects, nil, s.now))
		require.Equal(t, slices.Sorted(maps.Keys(suspects)), slices.Sorted(maps.Keys(s.suspects)), "step %d", step)
		require.Equal(t, rows, s.rows(), "step %d", step)
	}
	require.Greater(t, partial, 1000)
}

// BenchmarkCollect measures a scan after a link has changed, beside n other endpoints.
func BenchmarkCollect(b *testing.B) {
	for _, n := range []int{10, 200, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := newScene(b, 1)
			for i := 2; i <= n; i++ {
				s.link(b, i, hostName(i))
				s.attach(b, i, false)
				s.pod(b, i, true)
			}
			feed, err := s.follow()
			require.NoError(b, err)
			defer feed.close()
			for b.Loop() {
				s.link(b, 1, hostName(1))
				txn := s.db.ReadTxn()
				_ = s.look(txn, s.suspects, feed.next(txn, statedb.NewWatchSet(), s.now), s.now)
			}
			require.Zero(b, len(s.suspects))
			require.Equal(b, endpointfeed.Marks{}, feed.next(s.db.ReadTxn(), statedb.NewWatchSet(), s.now))
		})
	}
}

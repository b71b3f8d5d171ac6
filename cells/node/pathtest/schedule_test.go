package pathtest

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/tables/pathtests"
	"github.com/waggle-net/waggle/pkg/testseed"
)

// TestSchedule_MatchesFullScan changes targets at random. The first target is the doubted one with the earliest due time. Without one, urgent targets and others
// take turns, as far as both are due.
func TestSchedule_MatchesFullScan(t *testing.T) {
	t.Parallel()
	random := testseed.New(t)
	began := time.Unix(1000, 0)
	var s schedule
	var targets []*target
	for i := range byte(30) {
		targets = append(targets, &target{peer: peer{inner: netip.AddrFrom4([4]byte{10, 0, 0, i})}})
	}
	waits := map[*target]bool{}
	found, turn := 0, false
	rank := func(to *target) int {
		switch {
		case doubted(to.row(pathtests.Direct)):
			return 0
		case to.urgent != turn:
			return 1
		}
		return 2
	}
	for range 5000 {
		for _, to := range targets {
			switch random.IntN(20) {
			case 0:
				s.drop(to)
				waits[to] = false
				continue
			case 1:
				to.due, to.urgent = began.Add(time.Duration(random.Int64N(int64(time.Hour)))), random.IntN(3) == 0
				to.rows = []*pathtests.Test{{Kind: pathtests.Direct, State: pathtests.Passed, Strikes: max(0, random.IntN(6)-4)}}
			case 2:
				to.busy = !to.busy
			default:
				continue
			}
			s.put(to)
			waits[to] = !to.busy
		}
		now, later := began.Add(time.Duration(random.Int64N(int64(time.Hour)))), began.Add(2*time.Hour)
		var first *target
		next := later
		for _, to := range targets {
			if !waits[to] {
				continue
			}
			if to.due.Before(next) {
				next = to.due
			}
			if !to.due.After(now) && (first == nil || rank(to) < rank(first) || rank(to) == rank(first) && to.due.Before(first.due)) {
				first = to
			}
		}
		got := s.first(now)
		require.Equal(t, first == nil, got == nil)
		require.Equal(t, next, s.next(later))
		if first != nil { // several targets may be due at the same time
			require.Equal(t, []any{first.due, rank(first)}, []any{got.due, rank(got)})
			require.True(t, waits[got])
			found++
			if random.IntN(2) == 0 {
				if rank(got) > 0 {
					turn = got.urgent
				}
				s.take(got)
				waits[got] = false
			}
		}
	}
	require.NotZero(t, found)
	for _, to := range targets {
		to.peer.inner = netip.Addr{} // the node no longer publishes an address
		s.put(to)
	}
	require.Nil(t, s.first(began.Add(time.Hour)))
}

// BenchmarkStart_5000Nodes measures a round without a due target.
func BenchmarkStart_5000Nodes(b *testing.B) {
	r := newRig(b, 5000)
	r.restore()
	r.self = local{ready: true, routeMTU: 1450}
	for i := range 5000 {
		to := &target{name: nameOf(i), peer: peerOf(nodeOf(i), r.in.Agent), due: time.Now().Add(time.Hour)}
		r.targets[to.name] = to
		r.waiting.put(to)
	}
	for b.Loop() {
		r.start(b.Context())
	}
}

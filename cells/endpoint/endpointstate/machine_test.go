package endpointstate

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/tables/endpointstates"
)

func allStates() []state {
	return []state{unborn, endpointstates.WaitingForIdentity, endpointstates.NotReady, endpointstates.WaitingToRegenerate,
		endpointstates.Regenerating, endpointstates.Restoring, endpointstates.Ready, endpointstates.Disconnecting,
		endpointstates.Disconnected, endpointstates.Invalid}
}

func allSituations() (list []situation) {
	for bits := range 16 {
		for p := missing; p <= done; p++ {
			list = append(list, situation{wanted: bits&1 != 0, restored: bits&2 != 0, quarantined: bits&4 != 0,
				gone: bits&8 != 0, progress: p})
		}
	}
	return list
}

// For every state in every situation, each step is legal, and the last state is the expected one.
func TestPath_EveryStateInEverySituation(t *testing.T) {
	t.Parallel()
	for _, from := range allStates() {
		for _, in := range allSituations() {
			through := path(from, in)
			require.Less(t, len(through), 5, "%s in %+v walks in circles: %v", from, in, through)
			s := from
			for _, to := range through {
				require.True(t, legal(s, to), "%q -> %q in %+v", s, to, in)
				s = to
			}
			requireEnd(t, from, s, in)
		}
	}
}

func requireEnd(t *testing.T, from, end state, in situation) {
	t.Helper()
	switch from {
	case endpointstates.Disconnected, endpointstates.Invalid, endpointstates.NotReady:
		require.Equal(t, from, end, "an end stays")
		return
	}
	switch {
	case !in.wanted && from == unborn:
		require.Equal(t, unborn, end)
	case !in.wanted && from == endpointstates.Disconnecting && in.gone:
		require.Equal(t, endpointstates.Disconnected, end)
	case !in.wanted, from == endpointstates.Disconnecting:
		require.Equal(t, endpointstates.Disconnecting, end, "%s in %+v", from, in)
	case in.quarantined || in.progress != done:
		require.NotEqual(t, endpointstates.Ready, end, "%s in %+v", from, in)
	default:
		require.Equal(t, endpointstates.Ready, end, "%s in %+v", from, in)
	}
}

func TestLegal_MatchesCiliumTable(t *testing.T) {
	t.Parallel()
	count := 0
	for _, from := range allStates() {
		for _, to := range allStates() {
			if legal(from, to) {
				count++
				require.NotEqual(t, unborn, to)
			}
		}
	}
	require.Equal(t, 20, count)
	require.False(t, legal(endpointstates.Disconnecting, endpointstates.Ready), "deletion is final")
	require.False(t, legal(endpointstates.Restoring, endpointstates.Ready), "a restored endpoint regenerates first")
	require.False(t, legal(endpointstates.Invalid, endpointstates.Disconnecting))
}

// successors lists the legal changes of a state, as in Cilium. Disconnected and invalid have none.
func successors(from state) []state {
	switch from {
	case unborn:
		return []state{endpointstates.WaitingForIdentity, endpointstates.Restoring}
	case endpointstates.WaitingForIdentity:
		return []state{endpointstates.Ready, endpointstates.Disconnecting, endpointstates.Invalid}
	case endpointstates.Ready:
		return []state{endpointstates.WaitingForIdentity, endpointstates.Disconnecting,
			endpointstates.WaitingToRegenerate, endpointstates.Restoring}
	case endpointstates.WaitingToRegenerate:
		return []state{endpointstates.Disconnecting, endpointstates.Restoring, endpointstates.Regenerating}
	case endpointstates.Regenerating:
		return []state{endpointstates.WaitingForIdentity, endpointstates.Disconnecting,
			endpointstates.WaitingToRegenerate, endpointstates.Restoring, endpointstates.Ready}
	case endpointstates.Restoring:
		return []state{endpointstates.Disconnecting, endpointstates.Regenerating}
	case endpointstates.Disconnecting:
		return []state{endpointstates.Disconnected}
	}
	return nil
}

func legal(from, to state) bool { return slices.Contains(successors(from), to) }

package nodelist

import (
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/throttle"
)

func loaded(t *testing.T, dir string) *trustedRanges {
	t.Helper()
	s := newTrustedRanges(agentconfig.Agent{StateDir: dir}, slog.New(slog.DiscardHandler))
	s.load()
	return s
}

func prefixes(texts ...string) (list []netip.Prefix) {
	for _, text := range texts {
		list = append(list, netip.MustParsePrefix(text))
	}
	return list
}

func TestTrustedRanges_SurvivesRestart(t *testing.T) {
	t.Parallel()
	dir, both := t.TempDir(), prefixes("10.0.1.0/24", "10.0.2.0/24")
	s := loaded(t, dir)
	s.take("a", both[:1])
	s.take("a", both[1:])
	s.take("b", both[:1])
	require.NoError(t, saveError(s))

	s = loaded(t, dir)
	require.True(t, s.has("a", both[0]))
	require.True(t, s.has("a", both[1]), "the present one: it may be a former one before the agent runs again")
	require.False(t, s.has("b", both[1]))
	s.take("a", nil) // not known yet
	s.take("a", both[1:])
	require.False(t, s.dirty)
	s.forget(func(node string) bool { return node == "a" })
	require.NoError(t, saveError(s))
	s = loaded(t, dir)
	require.False(t, s.has("a", both[0]))
	require.True(t, s.has("b", both[0]))

	file := filepath.Join(dir, trustedRangesKind, trustedRangesFile)
	require.NoError(t, os.WriteFile(file, []byte("nonsense"), 0o600))
	require.False(t, loaded(t, dir).has("b", both[0]))
	require.NoFileExists(t, file, "it is set aside")
}

// The file is written after the pause that the previous write has set, or when the agent stops.
func TestTrustedRanges_WritesAreSpaced(t *testing.T) {
	t.Parallel()
	dir, ranges := t.TempDir(), prefixes("10.0.1.0/24", "10.0.2.0/24", "10.0.3.0/24")
	synctest.Test(t, func(t *testing.T) {
		s := loaded(t, dir)
		s.due = time.Now().Add(time.Minute)
		s.take("a", ranges[:1])
		rest, err := s.save()
		require.NoError(t, err)
		require.Equal(t, time.Minute, rest)
		require.False(t, loaded(t, dir).has("a", ranges[0]))
		time.Sleep(rest)
		rest, err = s.save()
		require.NoError(t, err)
		require.Zero(t, rest)
		require.True(t, loaded(t, dir).has("a", ranges[0]))

		s.due = time.Now().Add(time.Minute)
		s.take("b", ranges[1:2])
		s.flush()
		require.True(t, loaded(t, dir).has("b", ranges[1]))
	})
}

// A disk that stalls once does not delay the next write for minutes.
func TestTrustedRanges_PauseIsBounded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		s := loaded(t, dir)
		for i, write := range []struct{ takes, pause time.Duration }{
			{5 * time.Millisecond, time.Second},
			{time.Minute, 10 * time.Second},
			{5 * time.Millisecond, time.Second},
		} {
			s.pace.Measure = func(work func()) time.Duration {
				return throttle.WallTime(func() { time.Sleep(write.takes); work() })
			}
			s.take("a", []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(i), 0}), 24)})
			rest, err := s.save()
			require.NoError(t, err)
			require.Zero(t, rest)
			require.Equal(t, write.pause, time.Until(s.due))
			time.Sleep(write.pause)
		}
	})
}

// While 5,000 nodes join within a minute, and a write takes 5 ms, the file is written about once a second.
func TestTrustedRanges_FewWritesWhileNodesJoin(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		s, writes := loaded(t, dir), 0
		s.pace.Measure = func(func()) time.Duration { // the content of the file is not part of this test
			writes++
			return throttle.WallTime(func() { time.Sleep(5 * time.Millisecond) })
		}
		for i := range 5000 {
			s.take(string(rune(0x4e00+i)), prefixes("10.1.0.0/24"))
			require.NoError(t, saveError(s))
			time.Sleep(time.Minute / 5000)
		}
		require.InDelta(t, 60, writes, 2)
	})
}

func TestTrustedRanges_IsBounded(t *testing.T) {
	t.Parallel()
	s := loaded(t, t.TempDir())
	for i := range 100 {
		s.take("a", []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(i), 0}), 24)})
	}
	require.Len(t, s.ranges["a"], maxNoted)
	for i := range 2 * maxTrustedNodes {
		require.Equal(t, i >= maxTrustedNodes, s.full)
		s.take(string(rune(0x4e00+i)), prefixes("10.1.0.0/24"))
	}
	require.Len(t, s.ranges, maxTrustedNodes)
}

func saveError(s *trustedRanges) error {
	_, err := s.save()
	return err
}

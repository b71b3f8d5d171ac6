package nodes

import (
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/settings"
	tables "github.com/waggle-net/waggle/pkg/tables/nodes"
)

func loaded(t *testing.T, dir string) *seen {
	t.Helper()
	s := newSeen(settings.Agent{StateDir: dir}, slog.New(slog.DiscardHandler))
	s.load()
	return s
}

// withRanges is the row of a node whose Node has ranges.
func withRanges(texts ...string) *tables.Node {
	n := &tables.Node{Name: "a", FromNode: len(texts)}
	for _, text := range texts {
		n.CIDRs = append(n.CIDRs, netip.MustParsePrefix(text))
	}
	return n
}

func TestSeen_OutlivesTheRun(t *testing.T) {
	t.Parallel()
	dir, one, two := t.TempDir(), netip.MustParsePrefix("10.0.1.0/24"), netip.MustParsePrefix("10.0.2.0/24")
	file := filepath.Join(dir, seenKind, seenFile)
	s := loaded(t, dir)
	s.take(withRanges(one.String()))
	require.NoError(t, s.save())
	require.NoFileExists(t, file, "the Node has its range")
	s.take(withRanges(two.String()))
	require.NoError(t, s.save())

	s = loaded(t, dir)
	require.True(t, s.has("a", one))
	require.False(t, s.has("a", two), "it stands in the Node")
	require.False(t, s.has("b", one))
	s.take(withRanges()) // not known yet
	s.take(withRanges(two.String()))
	require.False(t, s.dirty)
	s.forget("a")
	require.NoError(t, s.save())
	require.False(t, loaded(t, dir).has("a", one))

	require.NoError(t, os.WriteFile(file, []byte("nonsense"), 0o600))
	require.False(t, loaded(t, dir).has("a", one))
	require.NoFileExists(t, file, "it is set aside")
}

func TestSeen_IsBounded(t *testing.T) {
	t.Parallel()
	s := loaded(t, t.TempDir())
	for i := range 100 {
		s.take(withRanges(netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(i), 0}), 24).String()))
	}
	require.Len(t, s.ranges["a"], maxNoted)
	for i := range 2 * maxSeen {
		for _, text := range []string{"10.1.0.0/24", "10.2.0.0/24"} {
			n := withRanges(text)
			n.Name = string(rune(0x4e00 + i))
			s.take(n)
		}
	}
	require.Len(t, s.former, maxSeen)
}

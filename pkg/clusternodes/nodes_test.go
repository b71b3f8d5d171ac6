package clusternodes

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestIndex_LongestRangeDecides(t *testing.T) {
	t.Parallel()
	x := indexOf(row("a", "", "10.1.0.0/24", "fd01::/64"), row("wide", "", "10.0.0.0/8"), row("none", "192.0.2.1"))
	for _, c := range []struct {
		node, addr string
		want       bool
	}{
		{"a", "10.1.0.7", true}, {"a", "fd01::7", true}, {"a", "10.2.0.7", false}, {"wide", "10.1.0.7", false}, {"wide", "10.2.0.7", true},
		{"none", "10.2.0.7", false}, {"", "10.1.0.7", false},
	} {
		require.Equal(t, c.want, x.MayHost(c.node, netip.MustParseAddr(c.addr)), "%+v", c)
	}
	require.True(t, x.InPodCIDR(netip.MustParseAddr("10.1.0.7")))
	require.False(t, x.InPodCIDR(netip.MustParseAddr("192.0.2.1")))
}

func TestParseRange_RejectsLargeAndSpecialRanges(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{"10.1.0.7/24": "10.1.0.0/24", "10.0.0.0/8": "10.0.0.0/8", "fd00::1/16": "fd00::/16", "0.0.0.0/0": "", "::/0": "", "10.0.0.0/7": "",
		"fc00::/15": "", "nonsense": "", "::ffff:10.0.0.0/104": "", "127.0.0.0/8": "", "224.0.0.0/8": ""} {
		p, ok := ParseRange(text)
		require.Equal(t, want != "", ok, text)
		if ok {
			require.Equal(t, want, p.String(), text)
		}
	}
}

package tests

import (
	"testing"

	"github.com/waggle-net/waggle/bpf"
)

// Blocks cover each port of the range once and no others.
func TestPortPrefixes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		first, last uint16
		blocks      int
	}{{0, 65535, 1}, {1, 65535, 16}, {0, 65534, 16}, {80, 80, 1}, {65535, 65535, 1}, {0, 0, 1}, {8000, 8999, 6}, {1, 65534, 30}, {5, 4, 0}} {
		got := portPrefixes(c.first, c.last)
		next := uint32(c.first)
		for _, p := range got {
			first, last := bpf.NewPolicyRangeKey(1, bpf.PolicyAny, 0, 6, p.port, p.bits).Ports()
			if uint32(first) != next {
				t.Errorf("%d-%d: a block begins at %d, want %d", c.first, c.last, first, next)
			}
			next = uint32(last) + 1
		}
		if len(got) != c.blocks || (len(got) > 0 && next != uint32(c.last)+1) {
			t.Errorf("%d-%d: %v ends before %d, want %d blocks", c.first, c.last, got, next, c.blocks)
		}
	}
}

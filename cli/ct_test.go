package cli

import (
	"slices"
	"testing"
)

func TestCTFilter_ForwardsFlags(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		typed ctFilter
		want  []string
	}{
		{ctFilter{}, nil},
		{ctFilter{all: true}, []string{"--all"}},
		{ctFilter{endpoint: 7, pod: "shop/cart", address: "fd00::7"}, []string{"--endpoint=7", "--pod=shop/cart", "--address=fd00::7"}},
	} {
		if got := tc.typed.args(); !slices.Equal(got, tc.want) {
			t.Errorf("%+v: %q, want %q", tc.typed, got, tc.want)
		}
	}
}

package column

import (
	"net/netip"
	"slices"
	"testing"
	"time"
)

func TestUnsetValues(t *testing.T) {
	t.Parallel()
	if got := []string{Addr(netip.Addr{}), Time(time.Time{})}; !slices.Equal(got, []string{"-", "-"}) {
		t.Errorf("without values: %q", got)
	}
	east := time.FixedZone("east", 3600)
	got := []string{Addr(netip.MustParseAddr("fd00::7")), Time(time.Date(2026, 1, 2, 3, 4, 5, 6, east))}
	if want := []string{"fd00::7", "2026-01-02T02:04:05Z"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

package icmpecho

import (
	"encoding/binary"
	"net/netip"
	"testing"
	"time"
)

// However many hosts send requests, the list stays bounded. A source that did not fit is recorded when other sources have expired.
func TestListener_IsBounded(t *testing.T) {
	t.Parallel()
	l := Listener{heard: map[netip.Addr]time.Time{}}
	address := func(i uint32) netip.Addr {
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], i)
		return netip.AddrFrom4(b)
	}
	begin := time.Unix(1000, 0)
	for i := range uint32(maxSources + 10) {
		l.note(address(i), begin)
	}
	if len(l.heard) != maxSources || !l.Heard(address(maxSources)).IsZero() {
		t.Errorf("%d sources are remembered, want %d", len(l.heard), maxSources)
	}
	// While all sources are recent, they are searched once a second and not for each packet.
	l.swept = begin
	l.heard[address(0)] = begin.Add(-2 * sourceTTL)
	if l.note(address(maxSources), begin.Add(sweepInterval-1)); len(l.heard) != maxSources || l.heard[address(0)].IsZero() {
		t.Error("sources are searched again within the interval")
	}
	if l.note(address(maxSources), begin.Add(sweepInterval)); l.Heard(address(maxSources)).IsZero() {
		t.Error("sources are not searched after the interval")
	}
	later := begin.Add(sourceTTL + 2*sweepInterval)
	l.note(address(1), later)
	l.note(address(maxSources+1), later)
	if len(l.heard) != 2 || l.Heard(address(maxSources+1)) != later || l.Heard(address(1)) != later {
		t.Errorf("%d sources are remembered after the others are old, want 2", len(l.heard))
	}
}

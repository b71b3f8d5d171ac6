package icmpecho

import (
	"encoding/binary"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"
)

// flood is a socket with a message for each read: at once, or after an interval. It fails after the given number of messages.
type flood struct {
	left     int
	interval time.Duration
	reads    map[time.Duration]int // by time since began, in units of readInterval
	began    time.Time
}

func (f *flood) ReadFromIP([]byte) (int, *net.IPAddr, error) {
	if f.left--; f.left < 0 {
		return 0, nil, net.ErrClosed
	}
	time.Sleep(f.interval)
	f.reads[time.Since(f.began)/readInterval]++
	return 8, &net.IPAddr{IP: net.IPv4(192, 0, 2, 1)}, nil
}

func (*flood) Close() error { return nil }

// A flood of requests is read at a bounded rate. Requests at a lower rate are read without a delay.
func TestListener_FloodIsPaced(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ interval, want time.Duration }{"flood": {0, 10 * readInterval}, "below the rate": {time.Millisecond, 10 * readBatch * time.Millisecond}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l, f := Listener{heard: map[netip.Addr]time.Time{}}, &flood{left: 10 * readBatch, interval: c.interval, reads: map[time.Duration]int{}, began: time.Now()}
				l.read(f)
				if took := time.Since(f.began); took != c.want {
					t.Errorf("%d requests were read in %v, want %v", 10*readBatch, took, c.want)
				}
				for at, n := range f.reads {
					if n > readBatch {
						t.Errorf("%d requests were read in %v after %v, want at most %d", n, readInterval, at*readInterval, readBatch)
					}
				}
				if l.Heard(netip.MustParseAddr("192.0.2.1")).IsZero() {
					t.Error("the source was not recorded")
				}
			})
		})
	}
}

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

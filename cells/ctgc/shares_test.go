package ctgc

import (
	"strconv"
	"testing"

	"github.com/waggle-net/waggle/bpf"
)

// sharing is a collector with one pod, whose flows come and go during a pass.
type sharing struct {
	*testing.T
	*collector
	fake *fakeKernel
}

func newSharing(t *testing.T) *sharing {
	t.Helper()
	fake := newFake()
	return &sharing{T: t, fake: fake, collector: collectorOf(t, fake, fakeNat{fake}, pods[0])}
}

// open begins IPv4 flows from a port on, as programs do; counted is what they add to the share.
func (s *sharing) open(from, n, counted int) {
	s.Helper()
	s.fake.mu.Lock()
	defer s.fake.mu.Unlock()
	for i := range n {
		if _, err := s.fake.put([]string{bpf.MapCtEst4, "TCP", "10.1.0.7:" + strconv.Itoa(from+i), "192.0.2.1:443", "opener=7"}); err != nil {
			s.Fatal(err)
		}
	}
	s.fake.counts[pods[0].ID] += uint32(counted)
}

func (s *sharing) close(counted int) {
	s.fake.mu.Lock()
	defer s.fake.mu.Unlock()
	s.fake.counts[pods[0].ID] -= uint32(counted)
}

func (s *sharing) pass() {
	s.Helper()
	if err := (&pass{collector: s.collector}).run(s.Context()); err != nil {
		s.Fatal(err)
	}
}

// wantCount also wants to know whether another pass is to follow; it is forgotten.
func (s *sharing) wantCount(when string, want int32, another bool) {
	s.Helper()
	if got := int32(s.fake.counts[pods[0].ID]); got != want {
		s.Errorf("%s: the pod has %d flows in its share, want %d", when, got, want)
	}
	if got := len(s.heard.wake) > 0; got != another {
		s.Errorf("%s: another pass follows at once: %v", when, got)
	}
	s.drain()
}

// What a pod opens while a pass goes on counts in its share, also where the pass has been already: else a pod that opens its
// whole share then would get another one. The next pass counts each flow once.
func TestPass_FlowsThatComeMeanwhileCount(t *testing.T) {
	t.Parallel()
	s := newSharing(t)
	s.open(1000, 3, 8) // five that are over have been collected since
	s.pass()
	s.wantCount("at first", 3, false)
	s.fake.began = func(of string) {
		if of == bpf.MapCtEst6 {
			s.open(2000, 6, 6)
		}
	}
	s.pass()
	s.wantCount("with six that came behind the pass", 9, true)
	s.fake.began = func(of string) {
		if of == bpf.MapCtEst4 {
			s.open(3000, 2, 2)
		}
	}
	s.pass()
	s.wantCount("with two that came ahead of it", 13, true) // nobody knows whether it has seen them
	s.fake.began = nil
	s.pass()
	s.wantCount("afterwards", 11, false)
	s.fake.began = func(of string) {
		if of == bpf.MapCtEst6 {
			s.close(4)
		}
	}
	s.pass()
	s.wantCount("with four that programs ended behind it", 11, false)
}

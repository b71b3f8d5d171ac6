package ctgc

import (
	"strconv"
	"testing"

	"github.com/waggle-net/waggle/bpf"
)

// sharing is a collector with one pod, whose flows are created and deleted during a pass.
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

// open creates n IPv4 flows from the given port on, as programs do; counted is added to the count of the programs.
func (s *sharing) open(from, n, counted int) {
	s.Helper()
	s.fake.mu.Lock()
	defer s.fake.mu.Unlock()
	for i := range n {
		if _, err := s.fake.put([]string{bpf.MapCtEst4, "TCP", "10.1.0.7:" + strconv.Itoa(from+i), "192.0.2.1:443", "initiator=7"}); err != nil {
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
	if err := (&pass{access: s.access}).run(s.Context()); err != nil {
		s.Fatal(err)
	}
}

// wantCount checks the count, and whether another pass is requested. It removes the request.
func (s *sharing) wantCount(when string, want int32, another bool) {
	s.Helper()
	if got := int32(s.fake.counts[pods[0].ID]); got != want {
		s.Errorf("%s: the pod has %d flows in its share, want %d", when, got, want)
	}
	if got := len(s.signals.wake) > 0; got != another {
		s.Errorf("%s: another pass follows at once: %v", when, got)
	}
	s.drain()
}

// Flows that a pod creates during a pass count against its quota, also in a part of the map that the pass has already read: otherwise a pod could create its
// whole quota again. The next pass counts each flow once.
func TestPass_FlowsCreatedDuringPass_Count(t *testing.T) {
	t.Parallel()
	s := newSharing(t)
	s.open(1000, 3, 8) // the count includes five flows that were deleted since
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
	s.wantCount("with two that came ahead of it", 13, true) // the pass cannot know whether it has seen them
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

// Slot 0 has the flows of all endpoints beyond their guarantees.
func TestPass_FlowsBeyondGuaranteesAreCounted(t *testing.T) {
	t.Parallel()
	s := newSharing(t)
	s.fake.capacity = 4096 // guarantees of 4
	for _, c := range []struct{ opened, drift, want int }{{3, 100, 0}, {1, -5, 0}, {5, 0, 5}} {
		s.open(1000+100*c.opened, c.opened, c.opened)
		s.fake.counts[0] += uint32(c.drift)
		s.pass()
		if got := int(int32(s.fake.counts[0])); got != c.want {
			t.Errorf("%d flows are beyond guarantees, want %d", got, c.want)
		}
	}
}

// Flows beyond guarantees are counted for each family, and the node's own flows separately from the flows of endpoints, even if programs count wrongly.
func TestPass_TranslationsBeyondGuaranteesAreCounted(t *testing.T) {
	t.Parallel()
	for _, ipv6 := range []bool{false, true} {
		s := newSharing(t)
		s.fake.natCapacity = 2 * 1024 * 4 // guarantees of 4
		of := func(n int32) bpf.NatCount {
			if ipv6 {
				return bpf.NatCount{Ipv6: n}
			}
			return bpf.NatCount{Ipv4: n}
		}
		want := func(when string, beyond, node int32) {
			t.Helper()
			s.pass()
			if got, want := s.fake.natTotals, [2]bpf.NatCount{of(beyond), of(node)}; got != want {
				t.Errorf("IPv6 %v, %s: %+v, want %+v", ipv6, when, got, want)
			}
		}
		s.translate(ipv6, 1000, 4)
		s.fake.natTotals = [2]bpf.NatCount{{Ipv4: 9, Ipv6: -3}, {Ipv4: -1, Ipv6: 5}}
		want("with the guarantee of a pod", 0, 0)
		s.translate(ipv6, 2000, 3)
		want("with three more", 3, 0)
		for i := range 6 {
			s.ofNode(ipv6, 3000+i)
		}
		want("with six of the node", 5, 6)
		s.fake.now += 200
		want("when all are over", 0, 0)
	}
}

// ofNode creates a translated flow of the node and counts it, as programs do.
func (s *sharing) ofNode(ipv6 bool, port int) {
	s.Helper()
	s.fake.mu.Lock()
	defer s.fake.mu.Unlock()
	from, to := "203.0.113.1:"+strconv.Itoa(port), "192.0.2.1:53"
	count := &s.fake.natTotals[bpf.NatOfNode].Ipv4
	if ipv6 {
		from, to = "[2001:db8:1::1]:"+strconv.Itoa(port), "[2001:db8::1]:53"
		count = &s.fake.natTotals[bpf.NatOfNode].Ipv6
	}
	if _, err := s.fake.putPair([]string{"UDP", "to-outside", from, to, from, to, "from-outside", "node=1"}); err != nil {
		s.Fatal(err)
	}
	*count++
}

// translate creates n translated flows of a family from the given port on and counts them, as programs do.
func (s *sharing) translate(ipv6 bool, from, n int) {
	s.Helper()
	s.fake.mu.Lock()
	defer s.fake.mu.Unlock()
	ends, count := [3]string{"10.1.0.7:", "192.0.2.1:443", "203.0.113.1:"}, &s.fake.natCounts[pods[0].ID].Ipv4
	if ipv6 {
		ends, count = [3]string{"[fd00::7]:", "[2001:db8::1]:443", "[2001:db8:1::1]:"}, &s.fake.natCounts[pods[0].ID].Ipv6
	}
	for i := range n {
		port := strconv.Itoa(from + i)
		if _, err := s.fake.putPair([]string{"TCP", "to-outside", ends[0] + port, ends[1], ends[2] + port, ends[1], "from-outside",
			"masquerade=1", "endpoint=7"}); err != nil {
			s.Fatal(err)
		}
	}
	*count += int32(n)
}

// The count of translated flows is exact: a flow that a pod creates during a pass counts once, whether the pass has seen it or not, and a flow that the pass
// deletes does not count.
func TestPass_TranslatedFlowsCreatedDuringPass_CountOnce(t *testing.T) {
	t.Parallel()
	for _, ipv6 := range []bool{false, true} {
		s := newSharing(t)
		count := func() int32 {
			if ipv6 {
				return s.fake.natCounts[pods[0].ID].Ipv6
			}
			return s.fake.natCounts[pods[0].ID].Ipv4
		}
		s.translate(ipv6, 1000, 5)
		came := 0
		s.fake.reading = func() { // before each slice, also for existing flows
			came++
			s.translate(ipv6, 2000+came, 1)
		}
		s.pass()
		if want := int32(5 + came); came == 0 || count() != want {
			t.Errorf("IPv6 %v: %d flows count, want %d, of which %d came meanwhile", ipv6, count(), want, came)
		}
		s.fake.reading = nil
		s.pass()
		if want := int32(5 + came); count() != want {
			t.Errorf("IPv6 %v: after another pass %d flows count, want %d", ipv6, count(), want)
		}

		// All flows have expired; others are created behind the pass.
		s.fake.now += 200
		over := came
		s.fake.reading = func() {
			came++
			s.translate(ipv6, 2000+came, 1)
		}
		s.pass()
		if want := int32(came - over); count() != want {
			t.Errorf("IPv6 %v: %d flows count, want the %d that came meanwhile", ipv6, count(), want)
		}
	}
}

func TestTranslations(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ before, now, seen, deleted, want int32 }{
		"nothing happens":                          {5, 5, 5, 0, 5},
		"programs count too many":                  {9, 9, 5, 0, 5},
		"programs count too few":                   {2, 2, 5, 0, 5},
		"below 0":                                  {-3, -3, 0, 0, 0},
		"some are over":                            {9, 9, 5, 4, 5},
		"some added after the pass's position":     {5, 8, 5, 0, 8},
		"some added ahead of the pass's position":  {5, 8, 8, 0, 8},
		"some added and others ended":              {9, 12, 6, 4, 8},
		"some added while programs count too many": {50, 53, 5, 0, 8},
		"some added while programs count too few":  {0, 3, 8, 0, 8},
		"programs end some":                        {9, 6, 6, 0, 6},
	} {
		if got := translations(c.before, c.now, c.seen, c.deleted); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

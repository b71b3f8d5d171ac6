package services

import (
	"maps"

	"github.com/waggle-net/waggle/pkg/loadbalancer"
)

// ids gives numbers to addresses. An address that the run before knew keeps its number; others get the next that is free after the
// last one given, so that a number comes back only after all others: the datapath may still know somebody by it.
type ids struct {
	restored map[loadbalancer.Address]uint32
	used     map[uint32]struct{}
	last     uint32
}

// newIDs takes over what the maps have. Numbers that two addresses share belong to neither.
func newIDs(restored map[loadbalancer.Address]uint32) *ids {
	s := &ids{restored: map[loadbalancer.Address]uint32{}, used: map[uint32]struct{}{}}
	times := map[uint32]int{}
	for id := range maps.Values(restored) {
		times[id]++
	}
	for a, id := range restored {
		s.last = max(s.last, id)
		if s.used[id] = struct{}{}; id != 0 && times[id] == 1 {
			s.restored[a] = id
		}
	}
	return s
}

// of is the number of an address that has none in the tables.
func (s *ids) of(a loadbalancer.Address) uint32 {
	if id, found := s.restored[a]; found {
		return id
	}
	for {
		s.last++
		if _, taken := s.used[s.last]; s.last != 0 && !taken {
			s.used[s.last] = struct{}{}
			return s.last
		}
	}
}

// free gives a number back.
func (s *ids) free(a loadbalancer.Address, id uint32) {
	delete(s.used, id)
	delete(s.restored, a)
}

// settle forgets what the run before had: known tells which addresses have their number now, the others are gone.
func (s *ids) settle(known func(loadbalancer.Address) bool) {
	for a, id := range s.restored {
		if !known(a) {
			delete(s.used, id)
		}
	}
	s.restored = nil
}

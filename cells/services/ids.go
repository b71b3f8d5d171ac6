package services

import (
	"maps"

	"github.com/waggle-net/waggle/pkg/loadbalancer"
)

// ids gives numbers to addresses. An address that the run before knew keeps its number; others get the next that is free after the
// last one given, so that a number comes back only after all others: the datapath may still know somebody by it.
type ids struct {
	restored map[loadbalancer.Address]uint32
	used     map[uint32]uint64 // 64 numbers each, by the first of them; one number is given after the other, so they stand close
	last     uint32
}

func bitOf(id uint32) (at uint32, bit uint64) { return id &^ 63, 1 << (id & 63) }

func (s *ids) isUsed(id uint32) bool {
	at, bit := bitOf(id)
	return s.used[at]&bit != 0
}

func (s *ids) use(id uint32) {
	at, bit := bitOf(id)
	s.used[at] |= bit
}

func (s *ids) leave(id uint32) {
	at, bit := bitOf(id)
	if s.used[at] &^= bit; s.used[at] == 0 {
		delete(s.used, at)
	}
}

// newIDs takes over what the maps have. Numbers that two addresses share belong to neither.
func newIDs(restored map[loadbalancer.Address]uint32) *ids {
	s := &ids{restored: map[loadbalancer.Address]uint32{}, used: map[uint32]uint64{}}
	times := map[uint32]int{}
	for id := range maps.Values(restored) {
		times[id]++
	}
	for a, id := range restored {
		s.last = max(s.last, id)
		if s.use(id); id != 0 && times[id] == 1 {
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
		if s.last != 0 && !s.isUsed(s.last) {
			s.use(s.last)
			return s.last
		}
	}
}

// free gives a number back.
func (s *ids) free(a loadbalancer.Address, id uint32) {
	s.leave(id)
	delete(s.restored, a)
}

// settle forgets what the run before had: known tells which addresses have their number now, the others are gone.
func (s *ids) settle(known func(loadbalancer.Address) bool) {
	for a, id := range s.restored {
		if !known(a) {
			s.leave(id)
		}
	}
	s.restored = nil
}

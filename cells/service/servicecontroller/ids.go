package servicecontroller

import (
	"maps"

	"github.com/waggle-net/waggle/pkg/loadbalancer"
)

// ids allocates ids for addresses. An address of the previous run keeps its id. Another address gets the next free id after the last allocated one, so an id is
// reused only after all others: programs of the datapath may still use it.
type ids struct {
	restored map[loadbalancer.Address]uint32
	used     map[uint32]uint64 // bitmaps of 64 ids each, by the first id; ids are allocated in sequence, so the bitmaps are dense
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

// newIDs restores the ids of the maps. An id that two addresses share stays used, and belongs to neither.
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

// assign returns the id of an address that has no row: the restored id, or the next free one.
func (s *ids) assign(a loadbalancer.Address) uint32 {
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

// free releases an id.
func (s *ids) free(a loadbalancer.Address, id uint32) {
	s.leave(id)
	delete(s.restored, a)
}

// settle releases the restored ids of addresses without a row. known reports whether an address has a row.
func (s *ids) settle(known func(loadbalancer.Address) bool) {
	for a, id := range s.restored {
		if !known(a) {
			s.leave(id)
		}
	}
	s.restored = nil
}

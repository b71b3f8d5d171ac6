package servicemaps

// slots is the array service_slots.
type slots struct {
	contents []uint32         // as written
	runs     *runs            // allocation of the elements
	refs     map[uint32]int32 // number of runs that name a backend, including quarantined runs
	// displaced are the backends that slots of an entry in force had before they were overwritten, by the first slot of the entry. They count as named.
	displaced map[uint32][]uint32
}

// list returns the backends in the slots of an entry. It returns none if the slots are not its own, because the array may not have them.
func (s *slots) list(e *entry) []uint32 {
	if !e.ours {
		return nil
	}
	return s.contents[e.value.First : e.value.First+e.value.Count]
}

// refer adds by to the reference count of each backend in a run of slots.
func (s *slots) refer(list []uint32, by int32) {
	for _, id := range list {
		if s.refs[id] += by; s.refs[id] == 0 {
			delete(s.refs, id)
		}
	}
}

// drop frees slots at once.
func (s *slots) drop(first, count uint32) {
	s.refer(s.contents[first:first+count], -1)
	s.runs.give(first, count)
}

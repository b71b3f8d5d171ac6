package servicemaps

import "math/bits"

// runs allocates runs of adjacent elements of an array; it does not know their contents. Short runs are allocated from the start and long ones from the end,
// which limits fragmentation.
type runs struct {
	taken []uint64 // one bit for each element
	size  uint32
	low   uint32 // no element below is free
	used  uint32 // number of taken elements
}

// short is the maximum length of a run that is allocated from the start.
const short = 16

func newRuns(size uint32) *runs { return &runs{taken: make([]uint64, (size+63)/64), size: size} }

// take allocates a given run, unless a part of it is taken or out of range.
func (r *runs) take(first, n uint32) bool {
	if uint64(first)+uint64(n) > uint64(r.size) || r.nextTaken(first, first+n) != first+n {
		return false
	}
	for i := first; i < first+n; i++ {
		r.taken[i/64] |= 1 << (i % 64)
	}
	r.used += n
	return true
}

// get allocates any run of n elements. For n = 0 it allocates nothing.
func (r *runs) get(n uint32) (first uint32, found bool) {
	if n > r.size {
		return 0, false
	}
	if n <= short {
		first, found = r.up(n)
	} else {
		first, found = r.down(n)
	}
	if found {
		r.take(first, n)
	}
	return first, found
}

// give frees a run.
func (r *runs) give(first, n uint32) {
	for i := first; i < first+n; i++ {
		r.taken[i/64] &^= 1 << (i % 64)
	}
	r.low = min(r.low, first)
	r.used -= n
}

// longest returns the length of the longest free run.
func (r *runs) longest() (n uint32) {
	for at := r.nextFree(0); at < r.size; at = r.nextFree(at) {
		end := r.nextTaken(at, r.size)
		n, at = max(n, end-at), end
	}
	return n
}

func (r *runs) up(n uint32) (first uint32, found bool) {
	r.low = r.nextFree(r.low)
	for at := r.low; at+n <= r.size; at = r.nextFree(at) {
		end := r.nextTaken(at, at+n)
		if end == at+n {
			return at, true
		}
		at = end
	}
	return 0, false
}

func (r *runs) down(n uint32) (first uint32, found bool) {
	for end := r.lastFree(r.size); end >= n; end = r.lastFree(end) {
		at := r.lastTaken(end-n, end)
		if at == end-n {
			return at, true
		}
		end = at - 1
	}
	return 0, false
}

// nextFree returns the first free element from at on, or the size.
func (r *runs) nextFree(at uint32) uint32 {
	for at < r.size {
		if free := ^r.taken[at/64] >> (at % 64); free != 0 {
			return min(at+uint32(bits.TrailingZeros64(free)), r.size)
		}
		at = (at/64 + 1) * 64
	}
	return r.size
}

// nextTaken returns the first taken element from at on, or end.
func (r *runs) nextTaken(at, end uint32) uint32 {
	for at < end {
		if taken := r.taken[at/64] >> (at % 64); taken != 0 {
			return min(at+uint32(bits.TrailingZeros64(taken)), end)
		}
		at = (at/64 + 1) * 64
	}
	return end
}

// lastFree returns one more than the last free element below end, or 0.
func (r *runs) lastFree(end uint32) uint32 {
	for end > 0 {
		last := end - 1
		if free := ^r.taken[last/64] << (63 - last%64); free != 0 {
			return end - uint32(bits.LeadingZeros64(free))
		}
		end = last / 64 * 64
	}
	return 0
}

// lastTaken returns one more than the last taken element from first to end, or first.
func (r *runs) lastTaken(first, end uint32) uint32 {
	for end > first {
		last := end - 1
		if taken := r.taken[last/64] << (63 - last%64); taken != 0 {
			return max(end-uint32(bits.LeadingZeros64(taken)), first)
		}
		end = last / 64 * 64
	}
	return first
}

package servicemaps

import "math/bits"

// runs gives out runs of neighbouring elements of an array, and knows nothing of what is in them. Short runs come from the beginning and
// long ones from the end, so that what is free stays in one piece as well as it can.
type runs struct {
	taken []uint64 // a bit for each element
	size  uint32
	low   uint32 // no element below is free
	used  uint32 // how many are taken
}

// short is how long a run from the beginning may be.
const short = 16

func newRuns(size uint32) *runs { return &runs{taken: make([]uint64, (size+63)/64), size: size} }

// take takes a certain run, unless a part of it is taken or there is no such part.
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

// get takes any run of n elements. Of a run of none nothing is taken.
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

// give gives back what was taken.
func (r *runs) give(first, n uint32) {
	for i := first; i < first+n; i++ {
		r.taken[i/64] &^= 1 << (i % 64)
	}
	r.low = min(r.low, first)
	r.used -= n
}

// longest is how many elements that are free stand together at most.
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

// nextFree is the first free element from at on, or the size.
func (r *runs) nextFree(at uint32) uint32 {
	for at < r.size {
		if free := ^r.taken[at/64] >> (at % 64); free != 0 {
			return min(at+uint32(bits.TrailingZeros64(free)), r.size)
		}
		at = (at/64 + 1) * 64
	}
	return r.size
}

// nextTaken is the first taken element from at on, or end.
func (r *runs) nextTaken(at, end uint32) uint32 {
	for at < end {
		if taken := r.taken[at/64] >> (at % 64); taken != 0 {
			return min(at+uint32(bits.TrailingZeros64(taken)), end)
		}
		at = (at/64 + 1) * 64
	}
	return end
}

// lastFree is one more than the last free element below end, or 0.
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

// lastTaken is one more than the last taken element from first to end, or first.
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

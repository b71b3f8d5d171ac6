package servicemaps

import (
	"fmt"
	"math"

	"github.com/waggle-net/waggle/bpf"
)

// quotaOf returns the number of places that one namespace may have in a map; 0 for no quota. Only services, backends and service_slots have quotas.
func (f *inForce) quotaOf(in string) uint32 {
	size := f.sizes[in]
	switch {
	case f.namespaceEntries == 0 || in != bpf.MapServices && in != bpf.MapBackends && in != bpf.MapServiceSlots:
		return 0
	case f.namespaceEntries < 0:
		return max(size/2, 1)
	}
	return uint32(max(1, min(uint64(f.namespaceEntries)*uint64(size)/uint64(max(1, f.sizes[mapOfQuota(in)])), math.MaxUint32)))
}

// mapOfQuota returns the map whose size the flag refers to: slots have a quota in proportion to services.
func mapOfQuota(in string) string {
	if in == bpf.MapServiceSlots {
		return bpf.MapServices
	}
	return in
}

// quotaLeft returns how many places of a map a share may get in addition. Entries that already exist stay, also beyond a quota.
func (f *inForce) quotaLeft(s *share, in string) uint32 {
	quota := f.quotaOf(in)
	if quota == 0 || s == nil || s.namespace == "" {
		return math.MaxUint32
	}
	return quota - min(quota, s.has(in))
}

// mayTake reports whether a share may get a run of n slots for an entry that has some. Those stay in quarantine and count as well, so a Service with more than half
// of the quota could never get a longer run: one entry at a time may move beyond the quota. With quarantined slots none may, so that changes in quick succession do
// not take the map. Slots of an entry that may not move are overwritten.
func (f *inForce) mayTake(s *share, n, has int) bool {
	left := f.quotaLeft(s, bpf.MapServiceSlots)
	if uint32(n) <= left {
		return true
	}
	return s.quarantined == 0 && s.slots <= f.quotaOf(bpf.MapServiceSlots) && has > 0 && uint32(max(0, n-has)) <= left
}

// overQuota counts a refused place, and returns the error.
func (f *inForce) overQuota(s *share, in string, need, growth int) error {
	f.rejected[in]++
	return &lack{in: in, need: uint32(need), growth: uint32(growth), err: fmt.Errorf("the Services of namespace %s have used up its quota of %d in the map %s: raise "+
		"--service-entries-per-namespace", s.namespace, f.quotaOf(in), in)}
}

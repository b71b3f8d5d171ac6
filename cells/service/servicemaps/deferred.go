package servicemaps

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/waggle-net/waggle/bpf"
)

// deferred is the state of rows that wait for quarantined slots.
type deferred struct {
	since   map[bpf.ServiceKey]time.Time // when a row that does not have all its slots first found too few free ones
	now     time.Time                    // time of this pass
	longest uint32                       // longest run of slots that would be free without quarantine
	known   bool                         // longest is valid in this pass
}

var errLater = errors.New("no slots are free until quarantined slots are released")

func (l *deferred) begin(now time.Time) { l.now, l.known = now, false }

// noSlots returns why an entry of a namespace that has some slots does not get n. If quarantined slots would suffice, the row waits for them, but for one
// quarantine time only: if other rows change continuously, some slots are always quarantined, and other rows may get them.
func (f *inForce) noSlots(key bpf.ServiceKey, of *namespace, n, has int) error {
	since, waits := f.later.since[key]
	if !waits {
		since = f.later.now
		f.later.since[key] = since
	}
	inQuota := f.mayTake(of, n, has)
	moves := of.slots > f.quotaOf(bpf.MapServiceSlots) // an entry moves: also in this pass, whose replaced entries are not in quarantine yet
	later := uint32(n) <= f.promised() && (inQuota || moves || of.quarantined > 0 && n-has <= f.quotaLeft(of, bpf.MapServiceSlots)+of.quarantined)
	switch {
	case f.later.now.Sub(since) < quarantine && later:
		return &noCapacity{of: capacityOf(bpf.MapServiceSlots), error: errLater}
	case !inQuota:
		return f.overQuota(of, bpf.MapServiceSlots)
	}
	f.rejected[bpf.MapServiceSlots]++
	return &noCapacity{of: capacityOf(bpf.MapServiceSlots), error: fmt.Errorf("the map %s has no %d consecutive free slots, of %d in all: raise --bpf-lb-map-max",
		bpf.MapServiceSlots, n, len(f.slots.contents))}
}

// promised returns the length of the longest run of slots that would be free without quarantine.
func (f *inForce) promised() uint32 {
	if !f.later.known {
		r := runs{taken: slices.Clone(f.slots.runs.taken), size: f.slots.runs.size}
		for i := range f.waiting {
			r.give(f.waiting[i].first, f.waiting[i].count)
		}
		f.later.longest, f.later.known = r.longest(), true
	}
	return f.later.longest
}

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

// noSlots returns why an entry of a share that has some slots, and gets fits of them, does not get n. If quarantined slots would suffice, the row waits for them,
// but for one quarantine time only: if other rows change continuously, some slots are always quarantined, and other rows may get them.
func (f *inForce) noSlots(key bpf.ServiceKey, of *share, n, has, fits int) error {
	since, waits := f.later.since[key]
	if !waits {
		since = f.later.now
		f.later.since[key] = since
	}
	inQuota := f.mayTake(of, n, has)
	later := uint32(n) <= f.promised()
	if !inQuota {
		later = later && of.quarantined > 0 && uint32(max(0, n-has)) <= f.quotaLeft(of, bpf.MapServiceSlots)+of.quarantined
	}
	if f.later.now.Sub(since) < quarantine && later {
		return errLater
	}
	growth := n - min(n, fits)
	if !inQuota {
		return f.overQuota(of, bpf.MapServiceSlots, n, growth)
	}
	f.rejected[bpf.MapServiceSlots]++
	err := fmt.Errorf("the map %s has no %d consecutive free slots, of %d in all: raise --bpf-lb-map-max", bpf.MapServiceSlots, n, len(f.slots.contents))
	return &lack{in: bpf.MapServiceSlots, need: uint32(n), growth: uint32(growth), err: err}
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

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
	since   map[bpf.ServiceKey]time.Time // when a row that is not in force first found too few free slots
	now     time.Time                    // time of this pass
	longest uint32                       // longest run of slots that would be free without quarantine
	known   bool                         // longest is valid in this pass
}

var errLater = errors.New("no slots are free until quarantined slots are released")

func (l *deferred) begin(now time.Time) { l.now, l.known = now, false }

// noSlots fails a row. If quarantined slots would suffice, the row waits for them, but for one quarantine time only: if other rows change continuously, some
// slots are always quarantined, and other rows may get them.
func (c *controller) noSlots(p *plan, n int) {
	since, waits := c.deferred.since[p.key]
	if !waits {
		since = c.deferred.now
		c.deferred.since[p.key] = since
	}
	if c.deferred.now.Sub(since) < quarantine && uint32(n) <= c.promised() {
		p.fail(errLater)
		return
	}
	c.rejected[c.maps.Slots.Name()]++
	p.fail(fmt.Errorf("the map %s has no %d consecutive free slots, of %d in all: raise --bpf-lb-map-max", c.maps.Slots.Name(), n, len(c.slots)))
}

// promised returns the length of the longest run of slots that would be free without quarantine.
func (c *controller) promised() uint32 {
	if !c.deferred.known {
		r := runs{taken: slices.Clone(c.runs.taken), size: c.runs.size}
		for i := range c.waiting {
			r.give(c.waiting[i].first, c.waiting[i].count)
		}
		c.deferred.longest, c.deferred.known = r.longest(), true
	}
	return c.deferred.longest
}

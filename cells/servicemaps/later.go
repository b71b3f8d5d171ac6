package servicemaps

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/waggle-net/waggle/bpf"
)

// later is who waits for slots to leave quarantine.
type later struct {
	since   map[bpf.ServiceKey]time.Time // when a row that is not in force found no room for the first time
	now     time.Time                    // of this pass
	longest uint32                       // neighbouring slots that would be free without quarantine
	known   bool                         // in this pass
}

var errLater = errors.New("there is no room until slots leave quarantine")

func (l *later) begin(now time.Time) { l.now, l.known = now, false }

// noSlots fails a row. Where slots in quarantine would be enough it is to wait for these, but only once: where others change all the
// time there is always something in quarantine, and who gets it is not said.
func (c *controller) noSlots(p *plan, n int) {
	since, waits := c.later.since[p.key]
	if !waits {
		since = c.later.now
		c.later.since[p.key] = since
	}
	if c.later.now.Sub(since) < quarantine && uint32(n) <= c.promised() {
		p.fail(errLater)
		return
	}
	c.refused[c.maps.Slots.Name()]++
	p.fail(fmt.Errorf("the map %s has no room for %d more in a row, of %d in all: raise --bpf-lb-map-max", c.maps.Slots.Name(), n, len(c.slots)))
}

// promised is the longest run of slots that there would be without quarantine.
func (c *controller) promised() uint32 {
	if !c.later.known {
		r := runs{taken: slices.Clone(c.runs.taken), size: c.runs.size}
		for i := range c.waiting {
			r.give(c.waiting[i].first, c.waiting[i].count)
		}
		c.later.longest, c.later.known = r.longest(), true
	}
	return c.later.longest
}

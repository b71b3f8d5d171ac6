package servicemaps

import (
	"cmp"
	binaryheap "container/heap"
	"fmt"

	"github.com/waggle-net/waggle/bpf"
)

// lack is the error of a row for which a map has no place. The row is retried only when its share may get enough places.
type lack struct {
	in     string // the map; [ofBackends] for a row that waits until a backend of its namespace is added
	need   uint32 // number of places, of slots: of consecutive ones
	growth uint32 // number of places in addition to those that the row has
	err    error
}

// ofBackends is the queue of rows whose backends are not in their map.
const ofBackends = "backends of a namespace"

func (l *lack) Error() string { return l.err.Error() }
func (l *lack) Unwrap() error { return l.err }

// lacks returns the error of a row that lacks one place.
func lacks(in string, err error) error { return &lack{in: in, need: 1, growth: 1, err: err} }

// waits are rows that wait for places, in one queue for each map and share.
type waits[K comparable] struct {
	rows   map[K]*waiting[K]
	queues map[string]map[*share]*queue[K]
	order  uint64 // of the next row
}

// waiting is a row in a queue.
type waiting[K comparable] struct {
	*lack
	key   K
	order uint64
	at    int // index in the queue
	of    *queue[K]
}

// queue has the rows of one share that wait for places in one map, as a heap: those that need the fewest first, then in the order in which they failed.
type queue[K comparable] struct {
	share *share
	rows  []*waiting[K]
	given uint32 // number of places for rows that one call of [waits.take] has taken
}

func (q *queue[K]) Len() int { return len(q.rows) }
func (q *queue[K]) Less(i, j int) bool {
	a, b := q.rows[i], q.rows[j]
	return cmp.Or(cmp.Compare(a.growth, b.growth), cmp.Compare(a.order, b.order)) < 0
}
func (q *queue[K]) Swap(i, j int) {
	q.rows[i], q.rows[j] = q.rows[j], q.rows[i]
	q.rows[i].at, q.rows[j].at = i, j
}
func (q *queue[K]) Push(row any) {
	one := row.(*waiting[K])
	one.at = len(q.rows)
	q.rows = append(q.rows, one)
}
func (q *queue[K]) Pop() any {
	last := q.rows[len(q.rows)-1]
	q.rows = q.rows[:len(q.rows)-1]
	return last
}

func newWaits[K comparable]() waits[K] {
	return waits[K]{rows: map[K]*waiting[K]{}, queues: map[string]map[*share]*queue[K]{}}
}

// add adds a row, or moves it to the end of another queue.
func (w *waits[K]) add(key K, of *share, why *lack) {
	w.remove(key)
	if w.queues[why.in] == nil {
		w.queues[why.in] = map[*share]*queue[K]{}
	}
	q := w.queues[why.in][of]
	if q == nil {
		q = &queue[K]{share: of}
		w.queues[why.in][of] = q
	}
	row := &waiting[K]{lack: why, key: key, order: w.order, of: q}
	w.order++
	w.rows[key] = row
	binaryheap.Push(q, row)
}

func (w *waits[K]) remove(key K) {
	row := w.rows[key]
	if row == nil {
		return
	}
	delete(w.rows, key)
	binaryheap.Remove(row.of, row.at)
	if len(row.of.rows) == 0 {
		delete(w.queues[row.in], row.of.share)
	}
}

// Limits of one pass over a queue.
const (
	portion = 1024 // number of retried rows; a later pass retries the others
	ahead   = 16   // number of rows that are compared with the places: a row that does not fit delays few others
)

// next returns the row that gets the next places in a map: one that fits, of the share that has the fewest.
func (w *waits[K]) next(in string, fits func(row *waiting[K]) bool) (best *waiting[K]) {
	for _, q := range w.queues[in] {
		if best != nil && q.compare(best.of, in) >= 0 {
			continue
		}
		var first *waiting[K]
		for _, row := range q.rows[:min(ahead, len(q.rows))] {
			if fits(row) && (first == nil || q.Less(row.at, first.at)) {
				first = row
			}
		}
		best = cmp.Or(first, best)
	}
	return best
}

// compare orders queues by the places that their shares have, with those given to rows.
func (q *queue[K]) compare(o *queue[K], in string) int {
	if q.share.namespace == "" || o.share.namespace == "" {
		return compareShares(q.share, o.share, in)
	}
	return cmp.Or(cmp.Compare(q.share.has(in)+q.given, o.share.has(in)+o.given), cmp.Compare(q.share.namespace, o.share.namespace))
}

// take removes the rows that fit into a map from its queues, and returns them with the number of their places.
func (w *waits[K]) take(in string, room func() room) (keys []K, places uint32) {
	if len(w.queues[in]) == 0 {
		return nil, 0
	}
	has := room()
	for _, q := range w.queues[in] {
		q.given = 0
	}
	for len(keys) < portion && has.places > 0 {
		row := w.next(in, func(row *waiting[K]) bool { return has.fits(row.lack, row.of.share, row.of.given) })
		if row == nil {
			break
		}
		keys, places = append(keys, row.key), places+row.growth
		row.of.given += row.growth
		has.places -= row.growth
		w.remove(row.key)
	}
	return keys, places
}

// ready reports whether [waits.take] would take a row.
func (w *waits[K]) ready(in string, room func() room) bool {
	if len(w.queues[in]) == 0 {
		return false
	}
	has := room()
	return has.places > 0 && w.next(in, func(row *waiting[K]) bool { return has.fits(row.lack, row.of.share, 0) }) != nil
}

// wake returns the rows of a share that wait in a queue, in the order in which they failed, and removes them.
func (w *waits[K]) wake(in string, of *share) (keys []K) {
	for q := w.queues[in][of]; q != nil && len(q.rows) > 0; {
		row := q.rows[0]
		keys = append(keys, row.key)
		w.remove(row.key)
	}
	return keys
}

// of reports whether rows of a share wait.
func (w *waits[K]) of(one *share) bool {
	for _, all := range w.queues {
		if all[one] != nil {
			return true
		}
	}
	return false
}

// oldest returns the oldest row at the head of a queue.
func (w *waits[K]) oldest() (first *waiting[K]) {
	for _, all := range w.queues {
		for _, q := range all {
			if first == nil || q.rows[0].order < first.order {
				first = q.rows[0]
			}
		}
	}
	return first
}

// room is the free part of a map.
type room struct {
	in      string
	places  uint32
	longest uint32              // longest free run of slots
	left    func(*share) uint32 // number of places that a quota allows; nil without quotas
}

// fits reports whether a row of a share fits. given is the number of places that other rows of the share will have.
func (r room) fits(l *lack, of *share, given uint32) bool {
	if r.left != nil {
		if left := r.left(of); l.growth > left-min(left, given) {
			return false
		}
	}
	if r.in != bpf.MapServiceSlots {
		return l.need <= r.places
	}
	return l.growth <= r.places && (l.need <= r.longest || l.growth < l.need && l.growth <= r.longest) // the latter may extend its slots
}

// probe is the number of places that a full map may have nevertheless, at a retry without a removal: another writer may have removed entries.
const probe = 16

// room returns the free part of a map by the counts of places. Of slots these are the ones that became free since rows failed for lack of them.
func (f *inForce) room(in string) room {
	left := func(s *share) uint32 { return f.quotaLeft(s, in) }
	switch in {
	case bpf.MapServiceSlots:
		return room{in, min(f.freed, f.slots.runs.size-f.slots.runs.used), f.slots.runs.longest(), left}
	case bpf.MapMaglev:
		return room{in: in, places: uint32(len(f.tables.users)) - f.tables.used}
	}
	return room{in: in, places: f.limit(in) - min(f.limit(in), f.count(in)), left: left}
}

// limit returns the number of entries at which a map is full: its size, or the number that it had when it refused one.
func (f *inForce) limit(in string) uint32 {
	if n, full := f.limits[in]; full {
		return n
	}
	return f.sizes[in]
}

// count returns the number of entries of a map.
func (f *inForce) count(in string) uint32 {
	switch in {
	case bpf.MapServices:
		return uint32(len(f.entries))
	case bpf.MapBackends:
		return uint32(len(f.backends))
	case bpf.MapAffinityMembers:
		return f.holdings.members
	case bpf.MapSourceRanges:
		return f.holdings.ranges
	}
	panic(fmt.Errorf("no count of the map %s", in))
}

// learn records the numbers of entries at which maps have refused one in this pass. It is called before entries are removed.
func (f *inForce) learn() {
	for in := range f.full {
		f.limits[in] = f.count(in)
	}
	clear(f.full)
}

// allowProbe allows a few more entries than a full map had, at a retry.
func (f *inForce) allowProbe() {
	for in := range f.limits {
		if f.limits[in] = f.count(in) + probe; f.limits[in] >= f.sizes[in] {
			delete(f.limits, in)
		}
	}
	f.freed = f.slots.runs.size - f.slots.runs.used
}

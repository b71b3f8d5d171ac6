package servicemaps

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/waggle-net/waggle/bpf"
)

// capacity is a set of what rows wait for: free entries, slots or tables of maps, and the addition of a backend.
type capacity uint8

const (
	aBackend capacity = 1 << 7 // a backend was added: frontends wait for it
	anything          = ^capacity(0)
)

// capacityOf returns the capacity of a map.
func capacityOf(in string) capacity {
	return 1 << slices.Index([]string{bpf.MapServices, bpf.MapBackends, bpf.MapServiceSlots, bpf.MapMaglev, bpf.MapAffinityMembers, bpf.MapSourceRanges}, in)
}

// noCapacity is the error of a row that does not fit into a map or a quota, or whose backend is not in the map.
type noCapacity struct {
	of    capacity
	quota bool // of the namespace; the map has space
	error
}

func (e *noCapacity) Unwrap() error { return e.error }

// waitsFor returns the capacity for which a row with this error waits, 0 for other errors.
func waitsFor(err error) capacity {
	if full := (*noCapacity)(nil); errors.As(err, &full) {
		return full.of
	}
	return 0
}

// quotaFor returns the capacity in which a row with this error is beyond the quota of its namespace.
func quotaFor(err error) capacity {
	if full := (*noCapacity)(nil); errors.As(err, &full) && full.quota {
		return full.of
	}
	return 0
}

// retries decides which failed rows a pass retries. Rows that wait for capacity are retried when some is freed, and after a time, because another writer may have
// freed it. They have a backoff of their own, so that they do not delay the others.
type retries struct {
	transient, waiting backoff
	next               time.Time // of the next retry because of freed capacity, at the earliest
	freed              capacity  // rows that wait for it are retried
	// A pass retries rows whose last attempt precedes these numbers, so each at most once after its reason for a retry. 0 means none.
	transientBefore, waitingBefore uint64
}

// begin begins the retries that are due. It may be called several times in a pass; attempt is the number of the first attempt of the pass.
func (r *retries) begin(now time.Time, attempt uint64, freed *capacity) {
	if !now.Before(r.transient.at) {
		r.transientBefore = attempt
	}
	switch {
	case r.waiting.pause > 0 && !now.Before(r.waiting.at):
		r.freed = anything
	case *freed != 0 && (!now.Before(r.next) || r.waitingBefore == attempt):
		r.freed |= *freed
	default:
		return
	}
	r.waitingBefore, r.next, *freed = attempt, now.Add(minRetry), 0
}

// end ends a pass, and returns the time until the next one, 0 for never. The argument more means that the next pass continues the retries at once.
func (r *retries) end(now time.Time, left *backlog, freed *capacity, more bool) (d time.Duration) {
	r.transient.after(now, left.failing())
	r.waiting.after(now, left.again.waiting+left.againBackends.waiting > 0)
	if more {
		return time.Nanosecond
	}
	r.transientBefore, r.waitingBefore, r.freed = 0, 0, 0
	for _, one := range []backoff{r.transient, r.waiting} {
		if one.pause > 0 {
			d = sooner(d, one.at.Sub(now))
		}
	}
	switch {
	case len(left.again.rows)+len(left.againBackends.rows) == 0:
		*freed = 0
	case *freed != 0:
		d = sooner(d, r.next.Sub(now))
	}
	return d
}

// sooner returns the shorter of two waits. The first may be 0, which means forever.
func sooner(a, b time.Duration) time.Duration {
	b = max(b, time.Nanosecond)
	if a == 0 {
		return b
	}
	return min(a, b)
}

// backoff is the time of the next retry. The pause between retries grows.
type backoff struct {
	pause time.Duration
	at    time.Time
}

const (
	minRetry = 100 * time.Millisecond
	maxRetry = time.Minute
)

// after updates the time at the end of a pass. A pass before that time does not postpone it: otherwise continuous changes would prevent the retry.
func (b *backoff) after(now time.Time, failing bool) {
	switch {
	case !failing:
		*b = backoff{}
	case !now.Before(b.at):
		b.pause = min(max(2*b.pause, minRetry), maxRetry)
		b.at = now.Add(b.pause)
	}
}

// retried is the maximum number of frontends, and of backends, that one pass retries, so that changes do not wait long. Frontends that wait for quarantined
// slots are not counted.
const retried = 1024

// candidate is a failed row that may be retried.
type candidate[K comparable] struct {
	failure
	key  K
	rank int
}

// byAttempt orders rows that wait for quarantined slots first, then rows with other errors than missing capacity, and then by their last attempt.
func byAttempt[K comparable](a, b candidate[K]) int {
	return cmp.Or(cmp.Compare(only(b.later, uint8(1)), only(a.later, uint8(1))), cmp.Compare(only(b.transient, uint8(1)), only(a.transient, uint8(1))),
		cmp.Compare(a.attempt, b.attempt))
}

// byRank orders rows of namespaces with few entries before others. Rows without a namespace come first.
func byRank[K comparable](a, b candidate[K]) int {
	return cmp.Or(cmp.Compare(only(a.namespace != "", uint8(1)), only(b.namespace != "", uint8(1))), cmp.Compare(a.rank, b.rank), cmp.Compare(a.attempt, b.attempt))
}

// due returns the rows that a pass retries, in the order in which they get capacity, and reports whether others are left. A quarter are the rows with the oldest
// attempts, so that each is retried some time; the others are rows of the namespaces with the fewest entries.
func (f *failed[K]) due(r *retries, entries func(*namespace) int, known *inForce) (keys []K, left bool) {
	if (f.transient == 0 || r.transientBefore == 0) && r.waitingBefore == 0 {
		return nil, false
	}
	var rows []candidate[K]
	later := 0
	for key, x := range f.rows {
		freed := r.freed
		if freed != anything {
			freed &^= known.usedUp(x)
		}
		if x.transient && x.attempt < r.transientBefore || x.waits&freed != 0 && x.attempt < r.waitingBefore {
			rows = append(rows, candidate[K]{failure: x, key: key})
			later += int(only(x.later, uint8(1)))
		}
	}
	slices.SortFunc(rows, byAttempt)
	next := map[string]int{} // the entries of a namespace if those of its rows that precede come into force
	for i := range rows {
		name := rows[i].namespace
		if _, found := next[name]; !found && known.namespaces[name] != nil {
			next[name] = entries(known.namespaces[name])
		}
		rows[i].rank = next[name]
		next[name]++
	}
	if left = len(rows) > later+retried; left {
		slices.SortFunc(rows[later+retried/4:], byRank)
		rows = rows[:later+retried]
	}
	slices.SortFunc(rows, byRank)
	for _, row := range rows {
		keys = append(keys, row.key)
	}
	return keys, left
}

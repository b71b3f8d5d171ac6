package servicemaps

import (
	"errors"
	"time"

	"github.com/waggle-net/waggle/bpf"
)

// backlog is the work that remains after a pass. A value is the error of the last attempt; nil before the first one.
type backlog struct {
	// again are rows that could not be brought into force, by the keys of their entries and by id. The error is nil if another writer has changed their entries.
	again         map[bpf.ServiceKey]error
	againBackends map[uint32]error
	// leaving are entries without a row that are still in the map, orphans such backends.
	leaving map[bpf.ServiceKey]error
	orphans map[uint32]error
	untidy  map[uint32]error // frontends with members or ranges to remove, by id
}

func newBacklog() backlog {
	return backlog{again: map[bpf.ServiceKey]error{}, againBackends: map[uint32]error{}, leaving: map[bpf.ServiceKey]error{},
		orphans: map[uint32]error{}, untidy: map[uint32]error{}}
}

// problems calls do for each error that is not resolved.
func (b *backlog) problems(do func(error)) {
	for _, all := range []map[uint32]error{b.againBackends, b.orphans, b.untidy} {
		for _, err := range all {
			if err != nil {
				do(err)
			}
		}
	}
	for _, all := range []map[bpf.ServiceKey]error{b.again, b.leaving} {
		for _, err := range all {
			if err != nil {
				do(err)
			}
		}
	}
}

// failing reports whether work has failed, other than work that waits for quarantined slots.
func (b *backlog) failing() (failing bool) {
	b.problems(func(err error) { failing = failing || !errors.Is(err, errLater) })
	return failing
}

// retry is when failed work is tried again. The pause between retries grows.
type retry struct {
	pause time.Duration
	at    time.Time
}

const (
	minRetry = 100 * time.Millisecond
	maxRetry = time.Minute
)

// after updates the time of the next retry at the end of a pass. A pass that retried nothing, because it only handled a change, does not postpone the retry:
// otherwise continuous changes would prevent it.
func (r *retry) after(now time.Time, failing, roomier, tried bool) {
	switch {
	case !failing:
		*r = retry{}
	case roomier:
		r.pause, r.at = time.Nanosecond, now.Add(time.Nanosecond)
	case tried || r.pause == 0:
		r.pause = min(max(2*r.pause, minRetry), maxRetry)
		r.at = now.Add(r.pause)
	}
}

package servicemaps

import (
	"errors"
	"time"

	"github.com/waggle-net/waggle/bpf"
)

// backlog is the work that remains after a pass. A value is the error of the last attempt; nil before the first one.
type backlog struct {
	// again are rows that could not be brought into force, by the keys of their entries and by id. The error is nil if another writer has changed their entries.
	again         failed[bpf.ServiceKey]
	standing      map[bpf.ServiceKey]bool // rows of again that have entries; others may be left over
	againBackends failed[uint32]
	// leaving are entries without a row that are still in the map, orphans such backends.
	leaving map[bpf.ServiceKey]error
	orphans map[uint32]error
	untidy  map[uint32]error // frontends with members or ranges to remove, by id
}

// failed are rows that could not be brought into force. Those that lack places wait for them; the others are retried after a time. So the rows that do not fit
// into a full map cost nothing while other rows change.
type failed[K comparable] struct {
	errs  map[K]error
	soon  map[K]bool // without waits
	waits waits[K]
}

func newFailed[K comparable]() failed[K] {
	return failed[K]{errs: map[K]error{}, soon: map[K]bool{}, waits: newWaits[K]()}
}

// add records the error of a row of a share.
func (f *failed[K]) add(key K, of *share, err error) {
	f.forget(key)
	f.errs[key] = err
	if why := (*lack)(nil); errors.As(err, &why) && !errors.Is(err, errLater) {
		f.waits.add(key, of, why)
		return
	}
	f.soon[key] = true
}

// repair makes a row due that another writer has damaged, and reports whether its failure was not known before.
func (f *failed[K]) repair(key K) bool {
	err, known := f.errs[key]
	f.waits.remove(key)
	f.errs[key], f.soon[key] = err, true
	return !known
}

func (f *failed[K]) forget(key K) {
	delete(f.errs, key)
	delete(f.soon, key)
	f.waits.remove(key)
}

// problems calls do for errors that are not resolved. Of the rows that wait for places it calls do for one, and returns the number of the others.
func (f *failed[K]) problems(do func(error)) (others int) {
	for key := range f.soon {
		if err := f.errs[key]; err != nil {
			do(err)
		}
	}
	if row := f.waits.oldest(); row != nil {
		do(f.errs[row.key])
		return len(f.waits.rows) - 1
	}
	return 0
}

func newBacklog() backlog {
	return backlog{again: newFailed[bpf.ServiceKey](), standing: map[bpf.ServiceKey]bool{}, againBackends: newFailed[uint32](),
		leaving: map[bpf.ServiceKey]error{}, orphans: map[uint32]error{}, untidy: map[uint32]error{}}
}

// problems calls do for errors that are not resolved, and returns the number of others.
func (b *backlog) problems(do func(error)) (others int) {
	others = b.againBackends.problems(do) + b.again.problems(do)
	for _, all := range []map[uint32]error{b.orphans, b.untidy} {
		for _, err := range all {
			if err != nil {
				do(err)
			}
		}
	}
	for _, err := range b.leaving {
		if err != nil {
			do(err)
		}
	}
	return others
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
func (r *retry) after(now time.Time, failing, tried bool) {
	switch {
	case !failing:
		*r = retry{}
	case tried || r.pause == 0:
		r.pause = min(max(2*r.pause, minRetry), maxRetry)
		r.at = now.Add(r.pause)
	}
}

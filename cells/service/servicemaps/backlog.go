package servicemaps

import (
	"errors"

	"github.com/waggle-net/waggle/bpf"
)

// backlog is the work that remains after a pass. An error is the one of the last attempt; nil before the first one.
type backlog struct {
	// again are rows that could not be brought into force, by the keys of their entries and by id.
	again         failed[bpf.ServiceKey]
	againBackends failed[uint32]
	attempts      uint64 // number of failed attempts of all rows
	// leaving are entries without a row that are still in the map, orphans such backends.
	leaving map[bpf.ServiceKey]error
	orphans map[uint32]error
	untidy  map[uint32]error // frontends with members or ranges to remove, by id
}

func newBacklog() backlog {
	return backlog{again: failed[bpf.ServiceKey]{rows: map[bpf.ServiceKey]failure{}}, againBackends: failed[uint32]{rows: map[uint32]failure{}},
		leaving: map[bpf.ServiceKey]error{}, orphans: map[uint32]error{}, untidy: map[uint32]error{}}
}

// failed are rows that could not be brought into force.
type failed[K comparable] struct {
	rows map[K]failure
	// transient is the number of rows that are retried after a time, waiting the number of rows that wait for capacity other than quarantined slots.
	transient, waiting int
}

// failure is the state of a row in the backlog.
type failure struct {
	err       error  // nil if another writer has changed the entries of the row
	namespace string // see [namespace]
	waits     capacity
	quota     capacity // part of waits: beyond the quota of the namespace
	transient bool     // retried after a time, whatever it waits for
	later     bool     // waits for quarantined slots
	exists    bool     // the row has entries
	attempt   uint64   // number of the last attempt
}

// add records the last attempt of a row.
func (f *failed[K]) add(key K, x failure) {
	f.forget(key)
	x.later = errors.Is(x.err, errLater)
	f.rows[key] = x
	f.count(x, 1)
}

// repair makes a row due that another writer has damaged, and reports whether its failure was not known before.
func (f *failed[K]) repair(key K) bool {
	x, known := f.rows[key]
	x.transient = true
	f.add(key, x)
	return !known
}

func (f *failed[K]) forget(key K) {
	f.count(f.rows[key], -1)
	delete(f.rows, key)
}

func (f *failed[K]) count(x failure, by int) {
	switch {
	case x.transient:
		f.transient += by
	case x.waits != 0 && !x.later:
		f.waiting += by
	}
}

// some appends errors to a list, up to a number.
func (f *failed[K]) some(list []error, most int) []error {
	for _, x := range f.rows {
		if len(list) == most {
			break
		}
		if x.err != nil && !x.later {
			list = append(list, x.err)
		}
	}
	return list
}

// others returns the errors that are not those of rows.
func (b *backlog) others() (all []error) {
	for _, errs := range []map[uint32]error{b.orphans, b.untidy} {
		for _, err := range errs {
			if err != nil {
				all = append(all, err)
			}
		}
	}
	for _, err := range b.leaving {
		if err != nil {
			all = append(all, err)
		}
	}
	return all
}

// failing reports whether work has failed that does not wait for capacity.
func (b *backlog) failing() bool {
	return b.again.transient+b.againBackends.transient > 0 || len(b.others()) > 0
}

// problems returns the number of errors that are not resolved, and some of them.
func (b *backlog) problems(most int) (some []error, n int) {
	some = b.others()
	n = len(some) + b.again.transient + b.again.waiting + b.againBackends.transient + b.againBackends.waiting
	some = some[:min(len(some), most)]
	return b.again.some(b.againBackends.some(some, most), most), n
}

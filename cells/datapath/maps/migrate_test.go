package maps

import (
	"testing"

	"github.com/cilium/ebpf"
)

// entry is a table of one key that calls before at the start of each call. Its value is nil if there is no entry.
type entry struct {
	value  []byte
	before func()
}

func (e *entry) LookupBytes(any) ([]byte, error) {
	e.before()
	return e.value, nil
}

func (e *entry) Update(_, value any, how ebpf.MapUpdateFlags) error {
	e.before()
	return e.create(value.([]byte), how)
}

func (e *entry) Delete(any) error {
	e.before()
	return e.remove()
}

func (e *entry) create(value []byte, how ebpf.MapUpdateFlags) error {
	if how == ebpf.UpdateNoExist && e.value != nil {
		return ebpf.ErrKeyExist
	}
	e.value = value
	return nil
}

func (e *entry) remove() error {
	if e.value == nil {
		return ebpf.ErrKeyNotExist
	}
	e.value = nil
	return nil
}

// A program changes an entry between any two steps of the copy: both maps have the same value at the end. An entry whose creation failed for the program may
// exist in the present map alone.
func TestMigrateEntry_ProgramWritesBetweenSteps_MapsAgree(t *testing.T) {
	t.Parallel()
	for name, begin := range map[string]func(from, to *entry, failed *bool) []func(){
		"end": func(from, to *entry, _ *bool) []func() {
			return []func(){func() { _ = from.remove() }, func() { _ = to.remove() }}
		},
		"end and begin": func(from, to *entry, failed *bool) []func() {
			return []func(){
				func() { _ = from.remove() }, func() { _ = to.remove() },
				func() { _ = from.create([]byte("new"), ebpf.UpdateNoExist) },
				func() { *failed = to.create([]byte("new"), ebpf.UpdateNoExist) != nil },
				func() {
					if *failed {
						_ = from.remove()
					}
				},
			}
		},
		"store": func(from, to *entry, _ *bool) []func() {
			return []func(){func() { from.value = []byte("stored") }, func() { to.value = []byte("stored") }}
		},
	} {
		var at func(positions []int)
		steps := len(begin(nil, nil, nil))
		at = func(positions []int) {
			if len(positions) == steps {
				failed, from, to := migrateAmong(t, begin, positions)
				if same := string(from) == string(to); !same && !failed || failed && from != nil {
					t.Errorf("%s before calls %v: the former map has %q, the present one %q, refused: %v", name, positions, from, to, failed)
				}
				return
			}
			first := 0
			if n := len(positions); n > 0 {
				first = positions[n-1]
			}
			for call := first; call < 12; call++ {
				at(append(positions[:len(positions):len(positions)], call))
			}
		}
		at(nil)
	}
}

// A change that a program makes through a pointer to the former entry is copied if it happens before the last read of that entry.
func TestMigrateEntry_ChangedDuringCopy(t *testing.T) {
	t.Parallel()
	for call := range 3 {
		_, _, present := migrateAmong(t, func(from, _ *entry, _ *bool) []func() {
			return []func(){func() { from.value = []byte("changed") }}
		}, []int{call})
		if string(present) != "changed" {
			t.Errorf("changed before call %d: the present map has %q", call, present)
		}
	}
}

// migrateAmong copies an entry and runs step i of the program before call number positions[i] of the copy. It returns the remaining values.
func migrateAmong(t *testing.T, begin func(from, to *entry, failed *bool) []func(), positions []int) (failed bool, previous, present []byte) {
	t.Helper()
	call, from, to := 0, &entry{value: []byte("old")}, &entry{}
	steps := begin(from, to, &failed)
	before := func() {
		for len(positions) > 0 && positions[0] == call {
			steps[0]()
			steps, positions = steps[1:], positions[1:]
		}
		call++
	}
	from.before, to.before = before, before
	if err := migrateEntry(to, from, nil); err != nil {
		t.Error(err)
	}
	for _, step := range steps { // the copy made fewer calls
		step()
	}
	return failed, from.value, to.value
}

package sysctlrecord

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
)

// Pending is a setting that [Record.Restore] would restore.
type Pending struct{ Name, Have, Want string }

// Pending lists the settings that the agent changed and no other program has changed since, by name.
func (r *Record) Pending(k Kernel) ([]Pending, error) {
	doc, err := r.read()
	if err != nil || doc == nil {
		return nil, err
	}
	targets, have, err := doc.targets(k)
	if err != nil {
		return nil, err
	}
	var pending []Pending
	for _, name := range slices.Sorted(maps.Keys(targets)) {
		if !same(have[name], targets[name]) {
			pending = append(pending, Pending{name, have[name], targets[name]})
		}
	}
	return pending, nil
}

// Restore restores the settings of [Record.Pending]. A second call after an interrupted one completes the restoration.
func (r *Record) Restore(k Kernel) error {
	doc, err := r.read()
	if err != nil || doc == nil {
		return err
	}
	targets, have, err := doc.targets(k)
	if err != nil {
		return err
	}
	if maps.Equal(targets, have) {
		return nil
	}
	if doc.Targets == nil {
		doc.Targets = targets
		if err := r.store.Write(documentName, doc); err != nil {
			return fmt.Errorf("restore sysctls: %w", err)
		}
	}
	var errs []error
	for _, name := range slices.SortedFunc(maps.Keys(targets), leadersFirst) {
		errs = append(errs, restore(k, name, targets[name]))
	}
	return errors.Join(errs...)
}

// targets returns the target value and the current value of every recorded setting that exists. A setting that another program has changed since keeps its
// value.
func (d *document) targets(k Kernel) (targets, have map[string]string, err error) {
	targets, have = map[string]string{}, map[string]string{}
	var errs []error
	for name, c := range d.Changes {
		value, err := k.Read(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("read sysctl %s: %w", name, err))
			continue
		}
		have[name], targets[name] = value, value
		if same(value, c.Ours) {
			targets[name] = c.Before
		}
		if d.Targets != nil {
			targets[name] = d.Targets[name]
		}
	}
	return targets, have, errors.Join(errs...)
}

func restore(k Kernel, name, want string) error {
	have, err := k.Read(name)
	if errors.Is(err, fs.ErrNotExist) || err == nil && same(have, want) {
		return nil
	}
	if err == nil {
		err = k.Write(name, want)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("restore sysctl %s = %s: %w", name, want, err)
	}
	return nil
}

// leadersFirst orders settings that change other settings before all others.
func leadersFirst(a, b string) int {
	rank := func(name string) int {
		if dir, _ := leads(name); dir != "" {
			return 0
		}
		return 1
	}
	return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a, b))
}

// same compares values without regard to white space: the kernel prints tabs between several numbers.
func same(a, b string) bool {
	return strings.Join(strings.Fields(a), " ") == strings.Join(strings.Fields(b), " ")
}

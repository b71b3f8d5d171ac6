package loader

import (
	"errors"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/ebpf"
)

// TestLoadAll loads fake objects in virtual time.
func TestLoadAll(t *testing.T) {
	t.Parallel()
	invalid, rejected, late := errors.New("invalid"), errors.New("rejected"), errors.New("rejected later")
	type fake struct {
		takes            time.Duration
		unprepared, fail error
	}
	for name, c := range map[string]struct {
		objects []fake
		begin   []int // objects whose load begins
		loaded  []int
		takes   time.Duration
		err     error
	}{
		"none": {},
		"two at the same time, in order": {
			objects: []fake{{takes: 4 * time.Second}, {takes: time.Second}, {takes: 2 * time.Second}, {takes: 3 * time.Second}},
			begin:   []int{0, 1, 2, 3}, loaded: []int{0, 1, 2, 3}, takes: 6 * time.Second,
		},
		"none begins after an error": {
			objects: []fake{{takes: 4 * time.Second}, {takes: time.Second, fail: rejected}, {takes: time.Second}, {takes: time.Second}},
			begin:   []int{0, 1}, loaded: []int{0}, takes: 4 * time.Second, err: rejected,
		},
		"the error of the first object, which is rejected later": {
			objects: []fake{{takes: 4 * time.Second, fail: late}, {takes: time.Second, fail: rejected}, {takes: time.Second}},
			begin:   []int{0, 1}, takes: 4 * time.Second, err: late,
		},
		"an object that cannot be configured": {
			objects: []fake{{takes: time.Second}, {unprepared: invalid}, {takes: time.Second}},
			begin:   []int{0}, loaded: []int{0}, takes: time.Second, err: invalid,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				names := []string{"a", "b", "c", "d"}[:len(c.objects)]
				began, begin := time.Now(), make(chan int, len(names))
				all, err := loadAll(names, func(name string) (func() (object, error), error) {
					i := slices.Index(names, name)
					one := c.objects[i]
					return func() (object, error) {
						begin <- i
						time.Sleep(one.takes)
						if one.fail != nil {
							return object{}, one.fail
						}
						return object{programs: map[string]*ebpf.Program{name: nil}}, nil
					}, one.unprepared
				})
				took := time.Since(began)
				close(begin)
				var begun, loaded []int
				for i := range begin {
					begun = append(begun, i)
				}
				slices.Sort(begun)
				for i, o := range all {
					if slices.Equal(slices.Collect(maps.Keys(o.programs)), names[i:i+1]) {
						loaded = append(loaded, i)
					}
				}
				if !errors.Is(err, c.err) || took != c.takes {
					t.Errorf("ended after %v with error %v, want %v and %v", took, err, c.takes, c.err)
				}
				if !slices.Equal(begun, c.begin) || !slices.Equal(loaded, c.loaded) {
					t.Errorf("began %v and loaded %v, want %v and %v", begun, loaded, c.begin, c.loaded)
				}
			})
		})
	}
}

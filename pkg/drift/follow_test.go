package drift

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/hive/cell"
)

// TestFollow_ConflictIsLimitedAndNeverGivenUp has another writer revert each repair immediately, for a minute. The first five reads follow each other without
// a pause. From then on there are five a second during the conflict, and a repair needs one.
func TestFollow_ConflictIsLimitedAndNeverGivenUp(t *testing.T) {
	t.Parallel()
	const seconds, first, each = 60, 5, 5
	unreadable := errors.New("no memory")
	for name, find := range map[string]func(look int) (repaired, again bool, err error){
		"each look finds the change":           func(int) (bool, bool, error) { return true, false, nil },
		"the reconciler is slow":               func(look int) (bool, bool, error) { return look%3 == 0, look%3 != 0, nil },
		"each scan finds a changing row":       func(int) (bool, bool, error) { return true, true, nil },
		"each second read of the kernel fails": func(look int) (bool, bool, error) { return look%2 == 0, false, []error{nil, unreadable}[look%2] },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				health, _ := cell.NewSimpleHealth()
				announced := make(chan struct{}, 1)
				announce := func() {
					select {
					case announced <- struct{}{}:
					default: // a notification is pending, and one read covers all
					}
				}
				next := func(ctx context.Context) error {
					select {
					case <-ctx.Done():
						return ctx.Err()
					case <-announced:
						return nil
					}
				}
				looks, repairs := 0, 0
				go func() {
					_ = Follow(ctx, health, next, func() (again bool, err error) {
						if looks++; looks > 2*(first+seconds*each) {
							cancel() // no time passes if the reads are not limited
							return false, nil
						}
						repaired, again, err := find(looks)
						if repaired {
							repairs++
							announce() // the other writer reverted it
						}
						return again, err
					})
				}()
				announce()
				for second := 1; second <= seconds; second++ {
					before := repairs
					time.Sleep(time.Second)
					synctest.Wait()
					if most := first + second*each; looks > most || looks < most-1 {
						t.Fatalf("%d looks in %d s, want %d", looks, second, most)
					}
					if repairs == before {
						t.Fatalf("no repair in second %d", second)
					}
				}
				t.Logf("%d looks and %d repairs in %d s", looks, repairs, seconds)
			})
		})
	}
}

package drift

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/hive/cell"
)

// TestFollow_NotificationsStop_TriesAgain: without notifications the health is degraded and names the cause. Follow tries again at growing intervals, and reads
// the kernel when there are notifications again.
func TestFollow_NotificationsStop_TriesAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		health, simple := cell.NewSimpleHealth()
		calls, looks, failures := 0, 0, 1000
		go func() {
			_ = Follow(ctx, health, func(ctx context.Context) error {
				switch calls++; {
				case calls <= failures:
					return errors.New("not mounted")
				case calls == failures+1:
					return nil
				}
				<-ctx.Done()
				return ctx.Err()
			}, func() (bool, error) { looks++; return false, nil })
		}()
		time.Sleep(time.Hour)
		synctest.Wait()
		if calls < 60 || calls > 70 || looks != 0 || simple.Level != cell.StatusDegraded || simple.Error == nil || simple.Error.Error() != "not mounted" {
			t.Fatalf("in an hour: %d calls, %d reads, health %s, %v", calls, looks, simple.Level, simple.Error)
		}
		failures = calls
		time.Sleep(lastRetry)
		synctest.Wait()
		if looks != 1 || simple.Level != cell.StatusOK {
			t.Fatalf("with notifications: %d reads, health %s, %v", looks, simple.Level, simple.Error)
		}
	})
}

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

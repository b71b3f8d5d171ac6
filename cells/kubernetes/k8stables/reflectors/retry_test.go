package reflectors

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/waggle-net/waggle/pkg/tables/apiservers"
)

// board has the state of one fake API server.
type board struct {
	mu      sync.Mutex
	row     apiservers.Server
	changed chan struct{}
}

func newBoard(reach apiservers.Reach) *board {
	return &board{row: apiservers.Server{Active: true, Reachable: reach}, changed: make(chan struct{})}
}

func (b *board) servers() ([]apiservers.Server, <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return []apiservers.Server{b.row}, b.changed
}

func (b *board) set(reach apiservers.Reach) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.row.Reachable = reach
	close(b.changed)
	b.changed = make(chan struct{})
}

// All callers that wait for a server repeat their request as soon as one of them has learned that it is back, without waiting for the rest of their
// delay of up to 4 s.
func TestRetryWhileUnavailable_ServerRecovers_AllRetry(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBoard(apiservers.No)
		var answered [12]time.Time
		var all sync.WaitGroup
		for i := range answered {
			all.Go(func() {
				_, err := retryWhileUnavailable(t.Context(), b.servers, func() (int, error) {
					if rows, _ := b.servers(); rows[0].Reachable == apiservers.No {
						return 0, errors.New("connection refused")
					}
					return 1, nil
				})
				if err != nil {
					t.Error(err)
				}
				answered[i] = time.Now()
			})
		}
		time.Sleep(time.Minute)
		b.set(apiservers.Yes)
		back := time.Now()
		all.Wait()
		for i, at := range answered {
			if late := at.Sub(back); late < 0 || late > firstPause {
				t.Errorf("%d asked %v after the server was back", i, late)
			}
		}
	})
}

// A server that answers other requests but not this one is asked again only after a pause.
func TestRetryWhileUnavailable_OtherRequestsSucceed_Pauses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, asked, begin := newBoard(apiservers.No), 0, time.Now()
		_, err := retryWhileUnavailable(t.Context(), b.servers, func() (int, error) {
			if asked++; asked == 100 {
				b.set(apiservers.Yes)
			} else {
				b.set(apiservers.No)
				time.AfterFunc(time.Millisecond, func() { b.set(apiservers.Yes) })
			}
			return 0, errors.New("connection reset")
		})
		if took := time.Since(begin); err == nil || took < 99*firstPause {
			t.Errorf("%d requests in %v: %v", asked, took, err)
		}
	})
}

func TestRetryWhileUnavailable_StatusError_IsReturned(t *testing.T) {
	t.Parallel()
	cut, refusal := errors.New("cut off"), error(apierrors.NewResourceExpired("too old"))
	for name, c := range map[string]struct {
		reach apiservers.Reach
		err   error
	}{
		"the server is well":          {apiservers.Yes, cut},
		"it rejects and is unhealthy": {apiservers.No, refusal},
	} {
		asked := 0
		_, err := retryWhileUnavailable(t.Context(), newBoard(c.reach).servers, func() (int, error) { asked++; return 0, c.err })
		if asked != 1 || !errors.Is(err, c.err) {
			t.Errorf("%s: %d requests, %v", name, asked, err)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := retryWhileUnavailable(ended, newBoard(apiservers.No).servers, func() (int, error) { return 0, cut }); !errors.Is(err, cut) {
		t.Errorf("an agent that ends got %v", err)
	}
}

package nodehealthprober

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waggle-net/waggle/pkg/tables/nodehealth"
)

func TestProber_Request_ProbesAllNodes(t *testing.T) {
	t.Parallel()
	for number, dead := range map[int]int{3000: 0, 300: 1} {
		synctest.Test(t, func(t *testing.T) {
			net := newFake()
			if dead > 0 {
				net.set(addressOf(1), wrong{errSilence, nil}) // this node is probed three times, and no other node is probed again meanwhile
			}
			r := start(t, net, number)
			begin := time.Now()
			since, err := r.requests.wait(t.Context())
			if took := time.Since(begin); err != nil || since != begin || took >= requestLimit {
				t.Errorf("%d nodes: answered after %v (%v), want before %v", number, took, err, requestLimit)
			}
			if sum := net.total(); sum.hello != number+2*dead {
				t.Errorf("%d HTTP requests, want one for each of %d nodes, and three for each of %d", sum.hello, number, dead)
			}
			states := r.states()
			if s := r.api.status(r.db.ReadTxn(), since); len(s.NotProbed) != 0 || states[nodehealth.Reachable] != number-dead || states[nodehealth.Unreachable] != dead {
				t.Errorf("%d of %d nodes were not probed: %v", len(s.NotProbed), number, states)
			}
		})
	}
}

// Requests end at their timeout even if no node replies, and do not delay each other. Their replies list the nodes that were not probed; the states of these
// nodes are older.
func TestProber_Request_IsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		net := newFake()
		const number = 2000
		r := start(t, net, number)
		time.Sleep(5 * time.Minute)
		for i := range number {
			net.set(addressOf(i), wrong{errSilence, errSilence})
		}
		leaves, leave := context.WithCancel(t.Context())
		var clients sync.WaitGroup
		for i := range 8 {
			clients.Go(func() {
				time.Sleep(time.Duration(i) * time.Second)
				ctx := t.Context()
				if i == 0 {
					ctx = leaves
				}
				begin := time.Now()
				since, err := r.requests.wait(ctx)
				switch took := time.Since(begin); {
				case err != nil:
					t.Error(err)
				case i == 0:
				case took != 20*time.Second:
					t.Errorf("client %d was answered after %v, want 20 s", i, took)
				default:
					s := r.api.status(r.db.ReadTxn(), since)
					if probed := number - len(s.NotProbed); probed < 100 || probed > number*3/4 || !slices.IsSorted(s.NotProbed) {
						t.Errorf("client %d: %d nodes were probed", i, probed)
					}
				}
			})
		}
		time.Sleep(1500 * time.Millisecond)
		leave() // the first client disconnects, which does not affect the others
		clients.Wait()
		if _, waiting := r.requests.latest(); waiting {
			t.Error("a request is left")
		}
	})
}

// A request starts with the nodes whose last probe is the oldest: two consecutive requests probe more nodes than one.
func TestProber_Request_ContinuesAfterLastRequest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const number = 2000
		net := newFake()
		for i := range number {
			net.set(addressOf(i), wrong{errSilence, errSilence})
		}
		r := start(t, net, number)
		first, err := r.requests.wait(t.Context())
		left := len(r.api.status(r.db.ReadTxn(), first).NotProbed)
		if _, err := r.requests.wait(t.Context()); err != nil {
			t.Error(err)
		}
		if still := len(r.api.status(r.db.ReadTxn(), first).NotProbed); err != nil || left < number/4 || still > left-number/4 {
			t.Errorf("%d nodes were not probed by the first request, %d by both: %v", left, still, err)
		}
	})
}

func TestRequests_AreLimited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRequests()
		var clients sync.WaitGroup
		for range maxRequests {
			clients.Go(func() {
				if _, err := r.wait(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		if _, err := r.wait(t.Context()); err == nil || !strings.Contains(err.Error(), "32 requests to probe all nodes are waiting already: try again later") {
			t.Errorf("one more: %v", err)
		}
		clients.Wait()
	})
}

package apiserver

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
)

// TestLane_ServesABurstInOrder sends more requests than can run concurrently: all succeed, waiting ones in order of arrival.
func TestLane_ServesABurstInOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLane("create", 1, 100)
		release := make(chan struct{})
		var order []int
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() {
				if err := l.enter(t.Context()); err != nil {
					t.Errorf("request %d: %v", i, err)
					return
				}
				defer l.slots.Release(1)
				order = append(order, i)
				<-release
			})
			synctest.Wait()
		}
		for range 50 {
			release <- struct{}{}
			synctest.Wait()
		}
		wg.Wait()
		for i, got := range order {
			if got != i {
				t.Fatalf("served in the order %v", order)
			}
		}
	})
}

func TestLane_QueueFull_RejectsAndNamesLength(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLane("create", 1, 2)
		if err := l.enter(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		for range 2 {
			go func() { _ = l.enter(ctx) }()
		}
		synctest.Wait()
		if err := l.enter(ctx); err == nil || err.Error() != "2 create requests are waiting already: try again later" {
			t.Errorf("got %v", err)
		}
		cancel()
		synctest.Wait()
		if n := l.waiting.Load(); n != 0 {
			t.Errorf("%d wait after their clients left", n)
		}
	})
}

// TestLimits_DeletionsPassWaitingCreations occupies every slot of creations with requests that wait for the kernel.
func TestLimits_DeletionsPassWaitingCreations(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.manager.block = make(chan struct{})
	var wg sync.WaitGroup
	answers := make([]int, maxRunning+10)
	for i := range answers {
		wg.Go(func() { answers[i] = f.request("PUT", "/v1/endpoint/cilium-local:0", put).StatusCode })
	}
	f.expect(f.request("DELETE", "/v1/endpoint/7", ""), 200, "")
	f.expect(f.request("GET", "/v1/endpoint/7", ""), 404, "")
	close(f.manager.block)
	wg.Wait()
	for i, code := range answers {
		if code != http.StatusCreated {
			t.Fatalf("creation %d was answered %d", i, code)
		}
	}
}

func TestAllocation_WaitsForRestore(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.manager.restored = make(chan struct{})
	f.expect(f.request("GET", "/v1/endpoint/7/healthz", ""), 200, `{"bpf":"OK",...`)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w := httptest.NewRecorder()
	f.handler.ServeHTTP(w, httptest.NewRequestWithContext(ctx, "POST", "/v1/ipam", nil))
	f.expect(w.Result(), 502, `"the agent is starting: the endpoints of the previous run are not restored yet: context canceled"`)
	if len(f.allocator.asked) != 0 {
		t.Error("an address was given before the restored ones were held")
	}
	close(f.manager.restored)
	f.expect(f.request("POST", "/v1/ipam", ""), 201, `{"address":...`)
}

func TestPanic_RepliesErrorAndLogs(t *testing.T) {
	t.Parallel()
	var log strings.Builder
	h := recovered(slog.New(slog.NewTextHandler(&log, nil)), http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("ouch") }))
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", "/v1/map", nil))
	if w.Code != 500 || w.Body.String() != "the handler of /v1/map panicked: ouch\n" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if !strings.Contains(log.String(), "cause=ouch") {
		t.Errorf("log: %s", log.String())
	}
}

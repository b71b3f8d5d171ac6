package apiserver

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"

	"golang.org/x/sync/semaphore"
)

// lane limits concurrent requests; the others wait in order of arrival. Cilium rejects requests above a rate; this lane lets a burst of a hundred ADDs run as
// fast as the kernel allows.
type lane struct {
	name    string
	slots   *semaphore.Weighted
	waiting atomic.Int64
	most    int64
}

// limits has separate lanes so that requests cannot block each other: creations wait for the kernel, possibly for resources that deletions free.
type limits struct{ create, remove, read *lane }

const (
	// maxRunning is the number of concurrent requests of one lane. Creations mostly wait, often for the same commits.
	maxRunning = 128
	// maxWaiting is the number of waiting requests of one lane above which further ones are rejected.
	maxWaiting = 1024
)

func newLimits() *limits {
	return &limits{newLane("create", maxRunning, maxWaiting), newLane("delete", maxRunning, maxWaiting),
		newLane("read", maxRunning, maxWaiting)}
}

func newLane(name string, running, waiting int64) *lane {
	return &lane{name: name, slots: semaphore.NewWeighted(running), most: waiting}
}

// of returns the lane of a request, nil for status and configuration: they must reply when all other requests hang.
func (l *limits) of(r *http.Request) *lane {
	path := strings.TrimPrefix(r.URL.Path, "/v1")
	switch {
	case path == "/healthz" || path == "/config":
		return nil
	case r.Method == http.MethodDelete:
		return l.remove
	case r.Method == http.MethodGet || r.Method == http.MethodHead:
		return l.read
	}
	return l.create
}

func (l *limits) limit(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		lane := l.of(r)
		if lane == nil {
			next.ServeHTTP(w, r)
			return
		}
		if err := lane.enter(r.Context()); err != nil {
			fail(w, http.StatusTooManyRequests, err)
			return
		}
		defer lane.slots.Release(1)
		next.ServeHTTP(w, r)
	})
}

// enter waits for a slot.
func (l *lane) enter(ctx context.Context) error {
	if l.slots.TryAcquire(1) {
		return nil
	}
	n := l.waiting.Add(1)
	defer l.waiting.Add(-1)
	if n > l.most {
		return fmt.Errorf("%d %s requests are waiting already: try again later", l.most, l.name)
	}
	if err := l.slots.Acquire(ctx, 1); err != nil {
		return fmt.Errorf("waited in the queue of %d %s requests: %w", n, l.name, err)
	}
	return nil
}

package nodehealthprober

import (
	"context"
	"fmt"
	"sync"
	"time"
)

const (
	// requestLimit is the timeout of a request to probe all nodes. Cilium's clients wait for 30 s.
	requestLimit = 20 * time.Second
	// maxRequests limits the clients that wait at the same time.
	maxRequests = 32
)

// requests are clients that wait until all nodes were probed after their request, up to three times if probes fail. They share all probes, and each has its own
// deadline, so many requests neither delay nor multiply the work.
type requests struct {
	arrived chan struct{} // receives a value when a client sends a request

	mu  sync.Mutex // guards all
	all map[*request]struct{}
}

type request struct {
	since time.Time
	done  chan struct{} // closed when each node was probed after since
}

func newRequests() *requests {
	return &requests{arrived: make(chan struct{}, 1), all: map[*request]struct{}{}}
}

// wait returns when each node was probed after the call, or after [requestLimit]. It returns the time of the call.
func (r *requests) wait(ctx context.Context) (since time.Time, err error) {
	q := &request{since: time.Now(), done: make(chan struct{})}
	if !r.add(q) {
		return q.since, fmt.Errorf("%d requests to probe all nodes are waiting already: try again later", maxRequests)
	}
	defer r.remove(q)
	notify(r.arrived)
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	select {
	case <-q.done:
	case <-ctx.Done():
	}
	return q.since, nil
}

func (r *requests) add(q *request) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.all) >= maxRequests {
		return false
	}
	r.all[q] = struct{}{}
	return true
}

func (r *requests) remove(q *request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.all, q)
}

// latest returns the time of the last waiting request, if there is one.
func (r *requests) latest() (since time.Time, waiting bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for q := range r.all {
		if q.since.After(since) {
			since = q.since
		}
	}
	return since, len(r.all) > 0
}

// complete completes requests that are not newer than oldest, the start of the oldest last visit of all targets.
func (r *requests) complete(oldest time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for q := range r.all {
		if !oldest.Before(q.since) {
			close(q.done)
			delete(r.all, q)
		}
	}
}

package nodehealth

import (
	"context"
	"fmt"
	"sync"
	"time"
)

const (
	// requestLimit bounds a request to probe all nodes. Clients of Cilium wait for 30 s.
	requestLimit = 20 * time.Second
	// maxRequests limits the clients that wait at one time.
	maxRequests = 32
)

// requests are the clients that wait until all nodes were probed after they asked, up to three times where probes fail. They share all probes, and each has its own deadline, so that
// many requests neither delay nor multiply the work.
type requests struct {
	arrived chan struct{} // filled when a client asks

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

// latest is the time of the last of the requests that wait, if there is one.
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

// answer ends requests that were made before a time, and before which the last visit of no target began.
func (r *requests) answer(oldest time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for q := range r.all {
		if !oldest.Before(q.since) {
			close(q.done)
			delete(r.all, q)
		}
	}
}

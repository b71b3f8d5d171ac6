package pathtest

import (
	"container/heap"
	"math"
	"math/rand/v2"
	"time"

	"github.com/waggle-net/waggle/pkg/tables/pathtests"
)

// interval returns the maximum time between two tests of a path, which is the time of a round of all paths, in a cluster with a number of nodes, including this
// one.
func interval(nodes int) time.Duration {
	grown := time.Duration(float64(baseInterval) * max(1, math.Log(float64(nodes))))
	return max(grown, time.Duration(nodes)*stepInterval).Round(time.Second)
}

// next returns the time until the next visit of a target.
func (t *tester) next(to *target) time.Duration {
	switch {
	case doubted(to.row(pathtests.Direct)):
		return directSuspectInterval
	case to.open() && to.fresh():
		return freshInterval
	case to.open(), to.corrupted() && to.unhealed <= healTries:
		return suspectInterval
	}
	// Half of a round spreads the paths of a large cluster, which are all tested within minutes of a start. The jitter of shorter times suffices for agents
	// that started together.
	after, part := interval(len(t.targets)+1), time.Duration(2)
	switch {
	case to.failed():
		after, part = failedInterval, 10
	case to.flows:
		after, part = t.users.interval(), 10
	}
	if direct := t.nextDirect(to); direct < after {
		after, part = direct, 10
	}
	return after - rand.N(after/part)
}

// schedule orders the targets that wait for a visit by due time, in separate queues for urgent ones and others. The zero value is empty.
type schedule struct{ urgent, others queue }

// queue is a heap of targets.
type queue []*target

// put inserts or moves a target after a change. A target that is being visited or has no address is in no queue.
func (s *schedule) put(to *target) {
	s.drop(to)
	if to.busy || !to.peer.inner.IsValid() {
		return
	}
	if to.queue = &s.others; to.urgent {
		to.queue = &s.urgent
	}
	heap.Push(to.queue, to)
}

// drop removes a target from its queue.
func (s *schedule) drop(to *target) {
	if to.queue != nil {
		heap.Remove(to.queue, to.place)
		to.queue = nil
	}
}

// first returns the next due target, urgent targets before others; nil if none is due.
func (s *schedule) first(now time.Time) *target {
	for _, q := range []queue{s.urgent, s.others} {
		if len(q) > 0 && !q[0].due.After(now) {
			return q[0]
		}
	}
	return nil
}

// next returns the earliest due time, at most later.
func (s *schedule) next(later time.Time) time.Time {
	for _, q := range []queue{s.urgent, s.others} {
		if len(q) > 0 && q[0].due.Before(later) {
			later = q[0].due
		}
	}
	return later
}

// Len implements heap.Interface.
func (q *queue) Len() int { return len(*q) }

// Less implements heap.Interface.
func (q *queue) Less(i, j int) bool { return (*q)[i].due.Before((*q)[j].due) }

// Swap implements heap.Interface.
func (q *queue) Swap(i, j int) {
	(*q)[i], (*q)[j] = (*q)[j], (*q)[i]
	(*q)[i].place, (*q)[j].place = i, j
}

// Push implements heap.Interface.
func (q *queue) Push(x any) {
	to := x.(*target) //nolint:forcetypeassert // by put alone
	to.place = len(*q)
	*q = append(*q, to)
}

// Pop implements heap.Interface.
func (q *queue) Pop() any {
	last := len(*q) - 1
	to := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	return to
}

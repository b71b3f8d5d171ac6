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
		after, part = max(failedInterval, time.Duration(len(t.paths.failed))*time.Second/flowsRate), 10
	case to.flows:
		after, part = t.users.interval(), 10
	}
	if direct := t.nextDirect(to); direct < after {
		after, part = direct, 10
	}
	return after - rand.N(after/part)
}

// schedule orders the targets that wait for a visit by due time, in a queue each for doubted ones, whose pods may lose packets, for urgent ones and for others.
// The zero value is empty.
type schedule struct {
	doubted, urgent, others queue
	turn                    bool // the last target that is not doubted was urgent, so one of the others is next
}

// queue is a heap of targets.
type queue []*target

// put inserts or moves a target after a change. A target that is being visited or has no address is in no queue.
func (s *schedule) put(to *target) {
	s.drop(to)
	if to.busy || !to.peer.inner.IsValid() {
		return
	}
	switch {
	case doubted(to.row(pathtests.Direct)):
		to.queue = &s.doubted
	case to.urgent:
		to.queue = &s.urgent
	default:
		to.queue = &s.others
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

// take removes a target whose visit starts.
func (s *schedule) take(to *target) {
	if to.queue != &s.doubted {
		s.turn = to.queue == &s.urgent
	}
	s.drop(to)
}

// first returns the next due target; nil if none is due. Doubted targets are first. Then urgent ones and others take turns: while thousands of nodes join, all
// of them urgent, the paths in use are tested as well.
func (s *schedule) first(now time.Time) *target {
	second, third := s.urgent, s.others
	if s.turn {
		second, third = third, second
	}
	for _, q := range []queue{s.doubted, second, third} {
		if len(q) > 0 && !q[0].due.After(now) {
			return q[0]
		}
	}
	return nil
}

// next returns the earliest due time, at most later.
func (s *schedule) next(later time.Time) time.Time {
	for _, q := range []queue{s.doubted, s.urgent, s.others} {
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

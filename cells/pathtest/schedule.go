package pathtest

import (
	"container/heap"
	"time"
)

// schedule orders the targets that wait for a visit: urgent ones apart from the others, each by the time at which they are due. The zero value is empty.
type schedule struct{ urgent, others queue }

// queue is a heap of targets.
type queue []*target

// put gives a target its place after a change of what the place depends on. One that is being visited, or has no address to visit, has none.
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

// drop takes a target out.
func (s *schedule) drop(to *target) {
	if to.queue != nil {
		heap.Remove(to.queue, to.place)
		to.queue = nil
	}
}

// first returns the target that is visited first of those that are due, nil without one.
func (s *schedule) first(now time.Time) *target {
	for _, q := range []queue{s.urgent, s.others} {
		if len(q) > 0 && !q[0].due.After(now) {
			return q[0]
		}
	}
	return nil
}

// next returns the time at which a target is due, or a later one without any until then.
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

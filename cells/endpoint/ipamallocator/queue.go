package ipamallocator

import (
	"container/list"
	"iter"
	"net/netip"
	"time"
)

// queue holds addresses in the order in which they are due. All entries of a queue have the same duration, so this is the order of insertion, and every
// operation takes constant time.
type queue struct {
	order list.List
	at    map[netip.Addr]*list.Element
}

type due struct {
	addr netip.Addr
	at   time.Time
}

func newQueue() *queue { return &queue{at: map[netip.Addr]*list.Element{}} }

// push appends addr. It reports whether the queue was empty, so that the caller must wake the loop.
func (q *queue) push(addr netip.Addr, at time.Time) bool {
	q.remove(addr)
	q.at[addr] = q.order.PushBack(due{addr, at})
	return q.order.Len() == 1
}

func (q *queue) remove(addr netip.Addr) {
	if e, ok := q.at[addr]; ok {
		q.order.Remove(e)
		delete(q.at, addr)
	}
}

// next returns the time at which the first entry becomes due; false when the queue is empty.
func (q *queue) next() (time.Time, bool) {
	if e := q.order.Front(); e != nil {
		return e.Value.(due).at, true
	}
	return time.Time{}, false
}

// ended yields the entries that are due. The caller may remove the yielded entry during the iteration.
func (q *queue) ended(now time.Time) iter.Seq[due] {
	return func(yield func(due) bool) {
		for e := q.order.Front(); e != nil; {
			d, next := e.Value.(due), e.Next()
			if d.at.After(now) || !yield(d) {
				return
			}
			e = next
		}
	}
}

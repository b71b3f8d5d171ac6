package ipam

import (
	"container/list"
	"iter"
	"net/netip"
	"time"
)

// queue holds addresses in the order in which their time runs out. All entries of one queue last equally long, so the
// order is that of their arrival, and every operation takes constant time.
type queue struct {
	order list.List
	at    map[netip.Addr]*list.Element
}

type due struct {
	addr netip.Addr
	at   time.Time
}

func newQueue() *queue { return &queue{at: map[netip.Addr]*list.Element{}} }

// push adds addr at the end. It is true when the queue was empty, so that somebody who sleeps must look again.
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

// next is when the first entry is due; false when there is none.
func (q *queue) next() (time.Time, bool) {
	if e := q.order.Front(); e != nil {
		return e.Value.(due).at, true
	}
	return time.Time{}, false
}

// ended gives the entries whose time has run out. The one that was given last may be removed meanwhile.
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

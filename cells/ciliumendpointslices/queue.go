package ciliumendpointslices

import (
	"slices"
	"time"

	"golang.org/x/time/rate"
)

// A node has a budget of changes of its pods, so that it cannot use up the writes of the cluster. Changes over it are written when nothing else is to be written, and in one of
// yieldTurn writes.
const (
	budgetRate  = 1  // changes a second
	budgetBurst = 20 // changes at once
	yieldTurn   = 10
)

// spend takes a change of a pod from the budget of its node.
func (p *planner) spend(node string) {
	if !p.begun {
		return
	}
	if p.budgets[node] == nil {
		p.budgets[node] = rate.NewLimiter(budgetRate, budgetBurst)
	}
	if p.yields = !p.budgets[node].Allow(); p.yields {
		p.over[node] = true
	}
}

// mark queues a slice, unless a failed write of it waits for its next attempt.
func (p *planner) mark(s *slice) {
	f := p.failures[s]
	switch {
	case f != nil && f.waits:
	case s.since.IsZero() && p.yields:
		s.since, s.yields = time.Now(), true
		p.last = append(p.last, s)
	case s.since.IsZero():
		s.since = time.Now()
		p.queue = append(p.queue, s)
	case s.yields && !p.yields:
		s.yields = false
		p.last = without(p.last, s)
		p.queue = append(p.queue, s)
	}
}

func without(queue []*slice, s *slice) []*slice {
	return slices.DeleteFunc(queue, func(other *slice) bool { return other == s })
}

// next returns the write that is due; nil when there is none, or none that has waited long enough: then it says how long that is.
func (p *planner) next() (op *operation, wait time.Duration) {
	for len(p.queue)+len(p.last) > 0 {
		queue, wait := p.choose()
		if wait > 0 {
			return nil, wait
		}
		s := (*queue)[0]
		*queue, s.since, s.yields = (*queue)[1:], time.Time{}, false
		if op := p.plan(s); op != nil {
			p.writes++
			return op, 0
		}
		p.written(s)
	}
	p.queue, p.last = nil, nil
	clear(p.over)
	return nil, 0
}

// choose returns the queue whose first slice is due, or the time until one is.
func (p *planner) choose() (due *[]*slice, wait time.Duration) {
	order := []*[]*slice{&p.queue, &p.last}
	if p.writes%yieldTurn == 0 {
		slices.Reverse(order)
	}
	wait = batch
	for _, queue := range order {
		if len(*queue) == 0 {
			continue
		}
		rest := batch - time.Since((*queue)[0].since)
		if rest <= 0 {
			return queue, 0
		}
		wait = min(wait, rest)
	}
	return nil, wait
}

// written notes that a slice has its desired content, and queues the slices that kept pods until then.
func (p *planner) written(s *slice) {
	delete(p.unwritten, s)
	delete(p.failures, s)
	for keeper := range s.wait {
		p.mark(keeper)
	}
	clear(s.wait)
}

// failure is a failed write, and when it is tried again.
type failure struct {
	err   error
	delay time.Duration // between the last two attempts
	waits bool          // for the next one
}

// failed returns the failure of a slice, and takes the slice from the queue.
func (p *planner) failed(s *slice) *failure {
	if s.since, s.yields = (time.Time{}), false; p.failures[s] == nil {
		p.failures[s] = &failure{}
	}
	p.queue, p.last = without(p.queue, s), without(p.last, s)
	return p.failures[s]
}

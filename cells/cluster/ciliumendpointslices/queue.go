package ciliumendpointslices

import (
	"slices"
	"time"

	"golang.org/x/time/rate"
)

// Each node has a budget of changes of its pods, so that it cannot use up the writes of the cluster. Changes over the budget are written when no other slice is
// due, and first in one of yieldTurn writes.
const (
	budgetRate  = 1  // changes per second
	budgetBurst = 20 // changes at once
	yieldTurn   = 10
)

// spend subtracts a change of a pod from the budget of its node, and sets yields when the budget is exceeded.
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

// mark queues a slice, unless it waits for a retry after a failed write.
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

// next returns the next write whose debounce interval is over. Without one it returns nil, and the time until the next write; 0 when the queues are empty.
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

// choose returns the queue whose first slice must be written now, or else the time until that is the case.
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

// written records that a slice has its desired content, and queues the slices that kept its pods until then.
func (p *planner) written(s *slice) {
	delete(p.unwritten, s)
	delete(p.failures, s)
	for keeper := range s.wait {
		p.mark(keeper)
	}
	clear(s.wait)
}

// failure is a failed write and the state of its retry.
type failure struct {
	err   error
	delay time.Duration // delay of the next attempt
	waits bool          // the next attempt is scheduled
}

// failed returns the failure of a slice, and removes the slice from the queues.
func (p *planner) failed(s *slice) *failure {
	if s.since, s.yields = (time.Time{}), false; p.failures[s] == nil {
		p.failures[s] = &failure{}
	}
	p.queue, p.last = without(p.queue, s), without(p.last, s)
	return p.failures[s]
}

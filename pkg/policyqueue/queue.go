// Package policyqueue orders policies that must be parsed again although their objects have not changed, so that no namespace delays another.
package policyqueue

import "github.com/waggle-net/waggle/pkg/policy"

// Queue holds policies that must be parsed again. Namespaces take turns; of each namespace the policy that was added first comes first. Clusterwide policies
// take turns like a namespace. The zero value is an empty queue. It is for one goroutine.
type Queue struct {
	turns   []string                // namespaces with policies, in the order of their turns
	waiting map[string][]policy.Ref // the policies of each of them, oldest first
	queued  map[policy.Ref]bool     // all policies in waiting; false after [Queue.Remove]
	count   int                     // of true values in queued
}

// Len returns the number of policies.
func (q *Queue) Len() int { return q.count }

// Add adds a policy, unless the queue has it.
func (q *Queue) Add(ref policy.Ref) {
	if q.queued[ref] {
		return
	}
	if q.queued == nil {
		q.queued, q.waiting = map[policy.Ref]bool{}, map[string][]policy.Ref{}
	}
	if _, listed := q.queued[ref]; !listed {
		if len(q.waiting[ref.Namespace]) == 0 {
			q.turns = append(q.turns, ref.Namespace)
		}
		q.waiting[ref.Namespace] = append(q.waiting[ref.Namespace], ref)
	}
	q.queued[ref] = true
	q.count++
}

// Remove removes a policy, if the queue has it.
func (q *Queue) Remove(ref policy.Ref) {
	if q.queued[ref] {
		q.queued[ref] = false
		q.count--
	}
}

// Take removes and returns the next policies whose sizes are together at most room, and at least one policy if there is any.
func (q *Queue) Take(room int, size func(policy.Ref) int) (taken []policy.Ref) {
	for len(q.turns) > 0 {
		namespace := q.turns[0]
		ref, rest := q.waiting[namespace][0], q.waiting[namespace][1:]
		if q.queued[ref] {
			n := size(ref)
			if len(taken) > 0 && n > room {
				return taken
			}
			room -= n
			taken = append(taken, ref)
			q.count--
		}
		delete(q.queued, ref)
		q.turns = q.turns[1:]
		if q.waiting[namespace] = rest; len(rest) > 0 {
			q.turns = append(q.turns, namespace)
		} else {
			delete(q.waiting, namespace)
		}
	}
	return taken
}

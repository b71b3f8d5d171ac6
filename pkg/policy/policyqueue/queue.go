// Package policyqueue orders policies that must be parsed again although their objects have not changed, so that no namespace delays another.
package policyqueue

import "github.com/waggle-net/waggle/pkg/policy"

// Queue holds policies that must be parsed again. Namespaces take turns; of each namespace the policy that was added first comes first. Each clusterwide policy
// takes turns like a namespace. The zero value is an empty queue. A Queue is not safe for concurrent use.
type Queue struct {
	turns   []string                // see [turn], in order
	waiting map[string][]policy.Ref // the policies of each turn, oldest first
	queued  map[policy.Ref]bool     // all policies in waiting; false after [Queue.Remove]
	count   int                     // of true values in queued
}

// turn returns the namespace of a policy, or a name of its own for a clusterwide policy: policies that refer to a Service of one tenant must not delay the
// clusterwide policies that protect other namespaces.
func turn(ref policy.Ref) string {
	if ref.Namespace == "" {
		return "/" + ref.Name // no name of a namespace
	}
	return ref.Namespace
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
		of := turn(ref)
		if len(q.waiting[of]) == 0 {
			q.turns = append(q.turns, of)
		}
		q.waiting[of] = append(q.waiting[of], ref)
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

// Take removes and returns the next policies whose sizes are together at most room, and at least one policy if there is any. It calls size once for each returned
// policy, and for the first one that is not returned.
func (q *Queue) Take(room int, size func(policy.Ref) int) (taken []policy.Ref) {
	for len(q.turns) > 0 {
		of := q.turns[0]
		ref, rest := q.waiting[of][0], q.waiting[of][1:]
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
		if q.waiting[of] = rest; len(rest) > 0 {
			q.turns = append(q.turns, of)
		} else {
			delete(q.waiting, of)
		}
	}
	return taken
}

package servicecontroller

// queue holds the services that must be computed again.
type queue struct {
	claims    []string        // services of which anything may change; all are in the next pass
	endpoints []string        // services of which only the backends may change; a pass takes some of them, the last ones first
	queued    map[string]bool // by name; true in claims, false in endpoints
}

func newQueue() queue { return queue{queued: map[string]bool{}} }

// claim queues a service of which anything may change.
func (q *queue) claim(name string) {
	if !q.queued[name] { // it may also be in endpoints, where takeEndpoints skips it
		q.queued[name] = true
		q.claims = append(q.claims, name)
	}
}

// follow queues a service of which only the backends may change.
func (q *queue) follow(name string) {
	if _, queued := q.queued[name]; !queued {
		q.queued[name] = false
		q.endpoints = append(q.endpoints, name)
	}
}

func (q *queue) empty() bool { return len(q.claims)+len(q.endpoints) == 0 }

// takeClaims takes the services of which anything may change.
func (q *queue) takeClaims() []string {
	names := q.claims
	q.claims = nil
	for _, name := range names {
		delete(q.queued, name)
	}
	return names
}

// takeEndpoints removes services of which only the backends may change from the queue, and returns them: at most the given number, and only until they have the
// given number of backends together. The last ones are first, so that a change does not wait for thousands of earlier ones.
func (q *queue) takeEndpoints(most, backends int, backendsOf func(name string) int) (names []string) {
	for len(q.endpoints) > 0 && len(names) < most && backends > 0 {
		last := len(q.endpoints) - 1
		name := q.endpoints[last]
		q.endpoints = q.endpoints[:last]
		if claims, queued := q.queued[name]; queued && !claims {
			delete(q.queued, name)
			names = append(names, name)
			backends -= backendsOf(name)
		}
	}
	if len(q.endpoints) == 0 {
		q.endpoints = nil
	}
	return names
}

// renew frees the memory of an empty queue.
func (q *queue) renew() {
	if q.empty() {
		*q = newQueue()
	}
}

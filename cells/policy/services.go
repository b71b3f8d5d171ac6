package policy

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/changes"
	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/policyqueue"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// Text of policies and of the selectors in it, in bytes, that one pass parses again because of changed Services: the owner of a Service may change it many times a
// second. Each policy counts for policyBytes more. Changed Services alone cause a pass at most once in servicePause.
const (
	servicePortion = 256 << 10
	policyBytes    = 256
	servicePause   = 100 * time.Millisecond
)

// serviceIndex follows the Services to which policies refer. Of all other Services it keeps nothing.
type serviceIndex struct {
	feed     *changes.Feed[*k8s.Service]
	changed  *statedb.WatchSet // closes when a Service changes
	referred map[policy.ServiceName]*referredService
	queue    policyqueue.Queue // policies that must be parsed again
	next     time.Time         // the earliest time of a pass for the queue or unread changes alone
	unread   bool              // Services have changed, and the next pass reads the changes
	// paced is false until all tables are known after a start. The queue is emptied in one pass until then, so that no endpoint gets a policy of the previous
	// meaning of a Service when the policies of the previous run are replaced.
	paced bool
}

// referredService is a Service to which policies refer.
type referredService struct {
	meaning policy.Service // with which the policies were parsed, or will be
	by      map[policy.Ref]struct{}
}

// follow takes in the changes of Services up to a snapshot, and queues the policies that refer to a Service whose meaning has changed.
func (s *serviceIndex) follow(txn statedb.ReadTxn) {
	s.changed, s.unread = statedb.NewWatchSet(), false
	for _, change := range s.feed.UpTo(txn, s.changed) {
		row := change.Object
		of := s.referred[policy.ServiceName{Namespace: row.Namespace, Name: row.Name}]
		if of == nil {
			continue
		}
		if change.Deleted {
			row = nil
		}
		if meaning := policy.ServiceOf(row); meaning != of.meaning {
			of.meaning = meaning
			s.enqueue(of)
		}
	}
}

// enqueueAll queues all policies that refer to Services.
func (s *serviceIndex) enqueueAll() {
	for _, name := range slices.SortedFunc(maps.Keys(s.referred), policy.ServiceName.Compare) {
		s.enqueue(s.referred[name])
	}
}

// enqueue queues the policies that refer to a Service, in order.
func (s *serviceIndex) enqueue(of *referredService) {
	for _, ref := range slices.SortedFunc(maps.Keys(of.by), func(a, b policy.Ref) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	}) {
		s.queue.Add(ref)
	}
}

// put notes that a policy, which was just parsed or deleted, refers to some Services now, and referred to others before.
func (s *serviceIndex) put(ref policy.Ref, before, now []policy.ServiceName, find func(policy.ServiceName) policy.Service) {
	s.queue.Remove(ref)
	for _, name := range before {
		of := s.referred[name]
		if delete(of.by, ref); len(of.by) == 0 {
			delete(s.referred, name)
		}
	}
	for _, name := range now {
		of := s.referred[name]
		if of == nil {
			of = &referredService{meaning: find(name), by: map[policy.Ref]struct{}{}}
			s.referred[name] = of
		}
		of.by[ref] = struct{}{}
	}
}

// readServices parses policies of the queue again, of the same snapshot: a portion, or all. A policy keeps its former meaning until then.
func (in *inputs) readServices(txn statedb.ReadTxn, all bool, now time.Time) {
	room := servicePortion
	if all || !in.services.paced {
		room = math.MaxInt
	}
	if in.services.queue.Len() > 0 {
		in.services.next = now.Add(servicePause)
	}
	size := func(ref policy.Ref) int {
		o, _, found := in.CiliumPolicies.Get(txn, ciliumPolicy(ref))
		if !found {
			return 0
		}
		bytes := len(o.Spec) + len(o.Specs) + policyBytes
		if p := in.policies[ref]; p != nil {
			bytes += p.ServiceBytes(in.services.meaning)
		}
		return bytes
	}
	for _, ref := range in.services.queue.Take(room, size) {
		whole, selects := in.all, in.resolver.SubjectsOf(ref) > 0
		in.parseAgain(txn, ref)
		in.all = whole || selects || in.resolver.SubjectsOf(ref) > 0 // otherwise the policy concerns no endpoint
		in.alive()
	}
}

// meaning returns the current meaning of a Service to which policies refer.
func (s *serviceIndex) meaning(name policy.ServiceName) policy.Service {
	if of := s.referred[name]; of != nil {
		return of.meaning
	}
	return policy.Service{}
}

// due returns the time until Services make a pass necessary, if nothing else does before. It reports false if they do not.
func (s *serviceIndex) due(now time.Time) (left time.Duration, necessary bool) {
	return s.next.Sub(now), s.unread || s.queue.Len() > 0
}

// passOverServices takes in changes of Services without a pass, and reports whether no policy must be parsed again now. Until the next pass may take a portion, it
// leaves the changes to that pass: thousands of policies may be queued at each of them.
func (in *inputs) passOverServices(changed *statedb.WatchSet) bool {
	if time.Now().Before(in.services.next) {
		in.services.unread = true
		return true
	}
	in.services.follow(in.DB.ReadTxn())
	changed.Merge(in.services.changed)
	return in.services.queue.Len() == 0
}

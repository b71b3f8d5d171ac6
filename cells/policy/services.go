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

// Bounds of the work that changed Services cause: the owner of a Service may change it many times a second. One pass parses policies with servicePortion bytes of
// text and selectors again; each policy counts for policyBytes more. Changed Services alone cause a pass at most once in servicePause.
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
	next     time.Time         // earliest time of a pass that only the queue or unread changes require
	unread   bool              // Services have changed, and the next pass reads the changes
	// paced is false after a start until all tables come from their sources. Until then one pass empties the queue, so that no endpoint changes from its policy
	// of the previous run to a policy with the previous meaning of a Service.
	paced bool
}

// referredService is a Service to which policies refer.
type referredService struct {
	meaning policy.Service // policies that were parsed with another meaning are queued
	by      map[policy.Ref]struct{}
}

// follow reads the changes of Services up to a snapshot, and queues the policies that refer to a Service whose meaning has changed.
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

// put records the Services to which a parsed or deleted policy refers now, in place of those to which its previous version referred.
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

// readServices parses policies of the queue again, all from one snapshot: a portion, or the whole queue. A queued policy keeps its former meaning until then.
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
		in.all = whole || selects || in.resolver.SubjectsOf(ref) > 0 // a policy without endpoints changes none
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

// due reports whether Services require a pass, and returns the time until then.
func (s *serviceIndex) due(now time.Time) (left time.Duration, necessary bool) {
	return s.next.Sub(now), s.unread || s.queue.Len() > 0
}

// passOverServices reads changes of Services without a pass, and reports whether no policy must be parsed again now. Before the time next it leaves the changes to
// the next pass, because each of them may queue thousands of policies.
func (in *inputs) passOverServices(changed *statedb.WatchSet) bool {
	if time.Now().Before(in.services.next) {
		in.services.unread = true
		return true
	}
	in.services.follow(in.DB.ReadTxn())
	changed.Merge(in.services.changed)
	return in.services.queue.Len() == 0
}

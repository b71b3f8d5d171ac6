package policymaps

import (
	"cmp"
	"maps"
	"math"
	"reflect"
	"slices"
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/changefeed"
	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/policy/policyenvironment"
	"github.com/waggle-net/waggle/pkg/policy/policyqueue"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// Bounds of the work that changed Services cause: the owner of a Service may change it many times a second. One pass parses policies with servicePortion bytes of
// text, selectors, addresses and labels again; each policy counts for policyBytes more. Changed Services alone cause a pass at most once in servicePause.
const (
	servicePortion = 256 << 10
	policyBytes    = 256
	servicePause   = 100 * time.Millisecond
)

// serviceIndex follows the Services to which policies refer, their EndpointSlices, and the namespaces in which policies choose Services by their labels. Of all
// other Services it keeps nothing.
type serviceIndex struct {
	tables   *policyenvironment.Inputs
	feed     *changefeed.Feed[*k8s.Service]
	slices   *changefeed.Feed[*k8s.EndpointSlice]
	changed  *statedb.WatchSet // closes when a Service or a slice changes
	previous *statedb.WatchSet // changed before the last call of follow: a channel whose changes follow has read may close later
	txn      statedb.ReadTxn   // the snapshot of a pass, up to which changes are read; nil between passes
	referred map[policy.ServiceName]*referredService
	// byAddresses is the number of these Services that have no selector.
	byAddresses int
	ofSlice     map[string]policy.ServiceName // the referred Service of a slice, by the name of the slice, "namespace/name"
	namespaces  map[string]*referredNamespace
	queue       policyqueue.Queue // policies that must be parsed again
	next        time.Time         // earliest time of a pass that only the queue or unread changes require
	unread      bool              // Services or slices have changed, and the next pass reads the changes
	// paced is false after a start until all tables come from their sources. Until then one pass empties the queue, so that no endpoint changes from its policy
	// of the previous run to a policy with the previous meaning of a Service.
	paced bool
}

// referredService is a Service to which policies refer.
type referredService struct {
	meaning policy.Service // policies that were parsed with another meaning are queued
	slices  map[string]struct{}
	by      map[policy.Ref]struct{}
}

// referredNamespace is a namespace in which policies choose Services by their labels.
type referredNamespace struct {
	labels map[string]string // of each Service, as in [k8s.Service.Labelled], by name
	bytes  int               // of labels
	by     map[policy.Ref]struct{}
}

func newServiceIndex(tables *policyenvironment.Inputs) serviceIndex {
	return serviceIndex{tables: tables, changed: statedb.NewWatchSet(), previous: statedb.NewWatchSet(), referred: map[policy.ServiceName]*referredService{}, ofSlice: map[string]policy.ServiceName{},
		namespaces: map[string]*referredNamespace{}}
}

// follow reads the changes of Services and slices up to a snapshot, and queues the policies that refer to a Service whose meaning has changed, or that choose
// among Services of which one has been created, deleted or relabelled.
func (s *serviceIndex) follow(txn statedb.ReadTxn) {
	s.previous, s.changed, s.unread = s.changed, statedb.NewWatchSet(), false
	touched := map[policy.ServiceName]bool{}
	for _, change := range s.feed.UpTo(txn, s.changed) {
		row := change.Object
		if name := (policy.ServiceName{Namespace: row.Namespace, Name: row.Name}); s.referred[name] != nil {
			touched[name] = true
		}
		if of := s.namespaces[row.Namespace]; of != nil && of.note(row, change.Deleted) {
			s.enqueue(of.by)
		}
	}
	for _, change := range s.slices.UpTo(txn, s.changed) {
		slice := change.Object
		if before, found := s.ofSlice[slice.Key()]; found {
			touched[before] = true
			s.leaveSlice(slice.Key())
		}
		if now := (policy.ServiceName{Namespace: slice.Namespace, Name: slice.Service}); !change.Deleted && s.joinSlice(slice.Key(), now) {
			touched[now] = true
		}
	}
	for _, name := range slices.SortedFunc(maps.Keys(touched), policy.ServiceName.Compare) {
		of := s.referred[name]
		if meaning := s.tables.Service(txn, name); meaning != of.meaning {
			s.mean(of, meaning)
			s.enqueue(of.by)
		}
	}
}

// mean sets the meaning of a Service.
func (s *serviceIndex) mean(of *referredService, meaning policy.Service) {
	if of.meaning.ByAddresses() {
		s.byAddresses--
	}
	if of.meaning = meaning; meaning.ByAddresses() {
		s.byAddresses++
	}
}

// note records a Service, and reports whether it has been created, deleted or relabelled.
func (n *referredNamespace) note(row *k8s.Service, deleted bool) bool {
	before, existed := n.labels[row.Name]
	if existed && !deleted && before == row.Labelled {
		return false
	}
	if existed {
		n.bytes -= len(row.Name) + len(before)
		delete(n.labels, row.Name)
	}
	if !deleted {
		n.bytes += len(row.Name) + len(row.Labelled)
		n.labels[row.Name] = row.Labelled
	}
	return existed || !deleted
}

// joinSlice records that a slice belongs to a Service, and reports whether policies refer to the Service.
func (s *serviceIndex) joinSlice(key string, name policy.ServiceName) bool {
	of := s.referred[name]
	if of == nil {
		return false
	}
	of.slices[key], s.ofSlice[key] = struct{}{}, name
	return true
}

// leaveSlice reverts [serviceIndex.joinSlice].
func (s *serviceIndex) leaveSlice(key string) {
	delete(s.referred[s.ofSlice[key]].slices, key)
	delete(s.ofSlice, key)
}

// enqueueAll queues all policies that refer to Services.
func (s *serviceIndex) enqueueAll() {
	for _, name := range slices.SortedFunc(maps.Keys(s.referred), policy.ServiceName.Compare) {
		s.enqueue(s.referred[name].by)
	}
	for _, namespace := range slices.Sorted(maps.Keys(s.namespaces)) {
		s.enqueue(s.namespaces[namespace].by)
	}
}

// enqueue queues policies, in order.
func (s *serviceIndex) enqueue(by map[policy.Ref]struct{}) {
	for _, ref := range slices.SortedFunc(maps.Keys(by), func(a, b policy.Ref) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	}) {
		s.queue.Add(ref)
	}
}

// put records the Services and namespaces to which a parsed policy refers now, in place of those to which its previous version referred. Either version is nil if
// there is none.
func (s *serviceIndex) put(before, now *policy.Policy) {
	if now != nil {
		s.queue.Remove(now.Ref)
		for _, name := range now.Services {
			s.refer(name).by[now.Ref] = struct{}{}
		}
		for _, namespace := range now.ServiceNamespaces {
			s.referNamespace(namespace).by[now.Ref] = struct{}{}
		}
	}
	if before == nil {
		return
	}
	var stays policy.Policy
	if now != nil {
		stays = *now
	} else {
		s.queue.Remove(before.Ref)
	}
	for _, name := range before.Services {
		if _, found := slices.BinarySearchFunc(stays.Services, name, policy.ServiceName.Compare); !found {
			s.unrefer(name, before.Ref)
		}
	}
	for _, namespace := range before.ServiceNamespaces {
		if slices.Contains(stays.ServiceNamespaces, namespace) {
			continue
		}
		of := s.namespaces[namespace]
		if delete(of.by, before.Ref); len(of.by) == 0 {
			delete(s.namespaces, namespace)
		}
	}
}

// refer returns a Service to which a policy refers. It reads a Service to which no policy has referred from the snapshot.
func (s *serviceIndex) refer(name policy.ServiceName) *referredService {
	of := s.referred[name]
	if of == nil {
		of = &referredService{slices: map[string]struct{}{}, by: map[policy.Ref]struct{}{}}
		s.referred[name] = of
		s.mean(of, s.tables.Service(s.txn, name))
		for slice := range s.tables.SlicesOf(s.txn, name) {
			s.joinSlice(slice.Key(), name)
		}
	}
	return of
}

// unrefer removes a policy that no longer refers to a Service, and the Service with its last policy.
func (s *serviceIndex) unrefer(name policy.ServiceName, ref policy.Ref) {
	of := s.referred[name]
	if delete(of.by, ref); len(of.by) > 0 {
		return
	}
	for key := range of.slices {
		delete(s.ofSlice, key)
	}
	s.mean(of, policy.Service{})
	delete(s.referred, name)
}

// referNamespace is [serviceIndex.refer] for a namespace.
func (s *serviceIndex) referNamespace(namespace string) *referredNamespace {
	of := s.namespaces[namespace]
	if of == nil {
		of = &referredNamespace{labels: map[string]string{}, by: map[policy.Ref]struct{}{}}
		s.namespaces[namespace] = of
		for name, labels := range s.tables.ServicesIn(s.txn, namespace) {
			of.note(&k8s.Service{Name: name, Labelled: labels}, false)
		}
	}
	return of
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
			bytes += p.ServiceBytes(in.services.meaning, in.services.labelBytes)
		}
		return bytes
	}
	for _, ref := range in.services.queue.Take(room, size) {
		in.readService(txn, ref)
		in.alive()
	}
}

// readService parses a policy again whose Services have changed. A policy that stays the same, for example because its selectors choose no Service that has
// changed, affects no endpoint.
func (in *inputs) readService(txn statedb.ReadTxn, ref policy.Ref) {
	o, _, found := in.CiliumPolicies.Get(txn, ciliumPolicy(ref))
	if !found {
		return
	}
	p := policy.FromCilium(o, in.env)
	if reflect.DeepEqual(p, in.policies[ref]) {
		return
	}
	in.policy(p, false)
}

// meaning returns the current meaning of a Service to which policies refer.
func (s *serviceIndex) meaning(name policy.ServiceName) policy.Service {
	if of := s.referred[name]; of != nil {
		return of.meaning
	}
	return policy.Service{}
}

// labelBytes returns the length of the labels of all Services in a namespace in which policies choose Services.
func (s *serviceIndex) labelBytes(namespace string) int {
	if of := s.namespaces[namespace]; of != nil {
		return of.bytes
	}
	return 0
}

// isOf reports whether a channel closes when a Service or a slice changes.
func (s *serviceIndex) isOf(channel <-chan struct{}) bool {
	return s.changed.Has(channel) || s.previous.Has(channel)
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

package ciliumendpointslices

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/util/rand"

	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/kubernetes/k8sobjects"
)

// batch is the debounce interval of the writes of a slice.
const batch = 100 * time.Millisecond

// planner assigns pods to slices and plans writes. It contains the last known state of each object and makes no requests.
//
//   - a pod is assigned to the fullest slice of its namespace with capacity for it, and stays there
//   - if a slice has at most a quarter of the allowed pods, they are moved to another slice with capacity for all of them
//   - a pod whose entry grows is moved if its slice becomes too large
//   - a moved pod is added to the new slice before it is removed from the old one, unless the old one becomes too large
type planner struct {
	most   int
	pods   map[string]*pod            // by "namespace/name"
	slices map[string]*slice          // by name
	spaces map[string]map[*slice]bool // by namespace of the pods
	open   map[string]map[*slice]bool // subset of spaces: slices with at least one pod and fewer than the allowed pods
	nodes  map[string]int             // number of pods, by node
	queue  []*slice                   // slices that may need a write, oldest first
	last   []*slice                   // the same for slices with changes only of nodes over their budget
	writes int                        // number of planned writes
	begun  bool                       // both first lists were applied

	// unwritten are the slices of the pods in the first lists, until the content of each slice was once the desired one. CompleteSlice does not wait for later
	// changes.
	unwritten map[*slice]bool
	failures  map[*slice]*failure // last failed writes

	budgets map[string]*rate.Limiter // budgets of changes, by name of the node
	over    map[string]bool          // nodes that have exceeded their budget since the queues were last empty
	yields  bool                     // the change that is being applied has low priority, as for a node over its budget
}

// pod is one CiliumEndpoint.
type pod struct {
	*k8sobjects.Sliced
	digest uint64 // hash of the entry
	size   int    // size of the entry in bytes of JSON
	home   *slice // slice of the pod; nil before the planner has begun
}

// slice is one CiliumEndpointSlice, which may not exist yet.
type slice struct {
	name, namespace string
	pods            map[string]*pod // assigned pods, by name
	size            int             // size of the entries of pods
	have            *storedSlice    // last known object; nil without an object
	since           time.Time       // time at which it was queued; zero when it is not queued
	yields          bool            // it is in the queue last
	wait            map[*slice]bool // slices that keep pods until this slice is written with them
}

// storedSlice is a slice of the API server.
type storedSlice struct {
	name, namespace string
	uid, version    string
	number          uint64            // the version as a number; 0 if it is not a number
	digests         map[string]uint64 // of entries, by name of the pod
	doubled         bool              // a name occurs more than once
}

func newPlanner(most int) *planner {
	return &planner{most: most, pods: map[string]*pod{}, slices: map[string]*slice{}, spaces: map[string]map[*slice]bool{}, open: map[string]map[*slice]bool{},
		nodes: map[string]int{}, unwritten: map[*slice]bool{}, failures: map[*slice]*failure{}, budgets: map[string]*rate.Limiter{}, over: map[string]bool{}}
}

// put adds or updates a pod.
func (p *planner) put(s *k8sobjects.Sliced, digest uint64, size int) {
	old := p.pods[s.Key()]
	if old == nil {
		old = &pod{}
		p.pods[s.Key()] = old
	} else {
		p.count(old, -1)
	}
	changed := old.digest != digest
	grown := size - old.size
	old.Sliced, old.digest, old.size = s, digest, size
	p.count(old, 1)
	if changed {
		p.spend(s.Host())
		defer func() { p.yields = false }()
	}
	switch {
	case old.home != nil && changed:
		home := old.home
		home.size += grown
		if p.mark(home); home.size > sliceSize && grown > 0 {
			p.displace(old)
			p.place(old, p.bestFit(s.Namespace(), home, 1, size))
		}
	case old.home == nil && p.begun:
		p.place(old, p.bestFit(s.Namespace(), nil, 1, size))
	}
}

// displace removes a pod from its home.
func (p *planner) displace(o *pod) {
	s := o.home
	delete(s.pods, o.Name())
	s.size -= o.size
	p.sort(s)
}

// count adds n to the number of pods of the node of a pod.
func (p *planner) count(o *pod, n int) {
	node := cmp.Or(o.Host(), o.Node().String())
	if p.nodes[node] += n; p.nodes[node] == 0 {
		delete(p.nodes, node)
	}
}

// remove deletes a pod.
func (p *planner) remove(key string) {
	o := p.pods[key]
	if o == nil {
		return
	}
	delete(p.pods, key)
	p.count(o, -1)
	p.spend(o.Host())
	defer func() { p.yields = false }()
	s := o.home
	if s == nil {
		return
	}
	p.displace(o)
	p.mark(s)
	for keeper := range s.wait { // may still contain the pod
		p.mark(keeper)
	}
	if n := len(s.pods); n > 0 && 4*n <= p.most {
		p.empty(s)
	}
}

// empty moves the pods of a slice to another slice, if one has capacity for all of them.
func (p *planner) empty(s *slice) {
	into := p.bestFit(s.namespace, s, len(s.pods), s.size)
	if into == nil {
		return
	}
	for _, o := range s.pods {
		p.displace(o)
		p.place(o, into)
	}
	if p.unwritten[s] {
		p.unwritten[into] = true
	}
	p.mark(s)
}

// bestFit returns the fullest slice of a namespace that is not empty, is not the slice not, and has capacity for n pods with a total size; nil when there is none.
func (p *planner) bestFit(namespace string, not *slice, n, size int) (best *slice) {
	for s := range p.open[namespace] {
		if s == not || len(s.pods)+n > p.most || s.size+size > sliceSize {
			continue
		}
		if best == nil || cmp.Or(cmp.Compare(len(s.pods), len(best.pods)), cmp.Compare(best.name, s.name)) > 0 {
			best = s
		}
	}
	return best
}

// place makes s the home of a pod. If s is nil, it creates a slice.
func (p *planner) place(o *pod, s *slice) {
	if s == nil {
		s = p.add("ces-"+rand.String(10), o.Namespace())
	}
	o.home, s.pods[o.Name()] = s, o
	s.size += o.size
	p.sort(s)
	p.mark(s)
}

// sort updates whether a slice is in open.
func (p *planner) sort(s *slice) {
	if n := len(s.pods); n == 0 || n >= p.most {
		delete(p.open[s.namespace], s)
		if len(p.open[s.namespace]) == 0 {
			delete(p.open, s.namespace)
		}
		return
	}
	if p.open[s.namespace] == nil {
		p.open[s.namespace] = map[*slice]bool{}
	}
	p.open[s.namespace][s] = true
}

func (p *planner) add(name, namespace string) *slice {
	s := &slice{name: name, namespace: namespace, pods: map[string]*pod{}, wait: map[*slice]bool{}}
	p.slices[name] = s
	if p.spaces[namespace] == nil {
		p.spaces[namespace] = map[*slice]bool{}
	}
	p.spaces[namespace][s] = true
	return s
}

// drop deletes a slice without pods and without an object.
func (p *planner) drop(s *slice) {
	delete(p.slices, s.name)
	delete(p.spaces[s.namespace], s)
	if len(p.spaces[s.namespace]) == 0 {
		delete(p.spaces, s.namespace)
	}
	for _, other := range p.slices {
		delete(other.wait, s)
	}
}

// begin assigns all pods, first to the existing slices that contain them. The first lists of pods and slices must have been applied.
func (p *planner) begin() {
	p.begun = true
	for _, name := range slices.Sorted(maps.Keys(p.slices)) {
		s := p.slices[name]
		for _, name := range slices.Sorted(maps.Keys(s.have.digests)) {
			if o := p.pods[s.namespace+"/"+name]; o != nil && o.home == nil && len(s.pods) < p.most && s.size+o.size <= sliceSize {
				p.place(o, s)
			}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(p.pods)) {
		if o := p.pods[key]; o.home == nil {
			p.place(o, p.bestFit(o.Namespace(), nil, 1, o.size))
		}
	}
	p.doubt()
}

// doubt queues all slices, and adds them to unwritten.
func (p *planner) doubt() {
	for _, name := range slices.Sorted(maps.Keys(p.slices)) {
		p.mark(p.slices[name])
		p.unwritten[p.slices[name]] = true
	}
}

// see applies the state of an object, unless this state or a newer one is known. Changes of other programs are repaired with low priority: they are not
// distinguishable from the event of an own write that arrives before the response to the write.
func (p *planner) see(o *storedSlice) {
	s := p.slices[o.name]
	if s == nil {
		s = p.add(o.name, o.namespace)
	}
	if s.learn(o) && p.begun {
		p.yields = true
		p.mark(s)
		p.yields = false
	}
}

// learn records a state of the object, and reports whether the state is new.
func (s *slice) learn(o *storedSlice) bool {
	if s.have != nil && s.have.uid == o.uid && (o.version == s.have.version || o.number < s.have.number) {
		return false
	}
	s.have = o
	return true
}

// gone applies the deletion of an object, and reports whether the slice must be created again. If uid is not empty, only an object with this uid counts.
func (p *planner) gone(name, uid string) (missed bool) {
	s := p.slices[name]
	if s == nil || s.have == nil || uid != "" && s.have.uid != uid {
		return false
	}
	if s.have = nil; !p.begun {
		p.drop(s)
		return false
	}
	if missed = len(s.pods) > 0; missed {
		p.unwritten[s] = true
	}
	p.mark(s)
	return missed
}

// list replaces the states of all objects, also by states with lower versions: after a restore of etcd, versions are lower. If the list is older than the response
// to a write, a later event contains the written state.
func (p *planner) list(all []*storedSlice) {
	exist := map[string]bool{}
	for _, o := range all {
		exist[o.name] = true
		if s := p.slices[o.name]; s != nil && s.have != nil && o.number < s.have.number {
			s.have = nil
		}
		p.see(o)
	}
	for _, name := range slices.Sorted(maps.Keys(p.slices)) {
		if !exist[name] {
			p.gone(name, "")
		}
	}
}

// operation is a write of one slice.
type operation struct {
	slice  *slice
	have   *storedSlice                  // previous object; nil for a creation
	object *ciliumv2.CiliumEndpointSlice // nil for a deletion
}

// plan returns the write of the desired content of a slice; nil when the object already has it.
func (p *planner) plan(s *slice) *operation {
	pods := maps.Clone(s.pods)
	if s.have != nil && s.have.namespace == s.namespace {
		size := s.size
		for _, name := range slices.Sorted(maps.Keys(s.have.digests)) {
			o := p.pods[s.namespace+"/"+name]
			if o != nil && o.home != s && !o.home.serves(o, s.have) && size+o.size <= mostSize {
				pods[name] = o // kept until its home is written with it
				size += o.size
				o.home.wait[s] = true
			}
		}
	}
	switch {
	case len(pods) == 0 && s.have == nil:
		if p.slices[s.name] == s {
			p.drop(s)
		}
		return nil
	case len(pods) == 0:
		return &operation{slice: s, have: s.have}
	case s.have.holds(s.namespace, pods):
		return nil
	}
	op := &operation{slice: s, have: s.have, object: &ciliumv2.CiliumEndpointSlice{PodNamespace: s.namespace}}
	op.object.Name = s.name
	for _, name := range slices.Sorted(maps.Keys(pods)) {
		op.object.Endpoints = append(op.object.Endpoints, pods[name].Entry())
	}
	return op
}

// serves reports whether agents can use the state of a pod from this slice if the pod is removed from the slice other: this slice contains the current state,
// or was written later than other.
func (s *slice) serves(o *pod, other *storedSlice) bool {
	if s.have == nil || s.have.namespace != s.namespace {
		return false
	}
	digest, found := s.have.digests[o.Name()]
	return found && (digest == o.digest || s.have.number > other.number)
}

// holds reports whether the content of a slice of the API server is exactly the current state of the given pods.
func (o *storedSlice) holds(namespace string, pods map[string]*pod) bool {
	if o == nil || o.namespace != namespace || o.doubled || len(o.digests) != len(pods) {
		return false
	}
	for name, pod := range pods {
		if digest, found := o.digests[name]; !found || digest != pod.digest {
			return false
		}
	}
	return true
}

// done applies a successful write. now is the object after the write; nil after a deletion.
func (p *planner) done(op *operation, now *storedSlice) {
	if now == nil {
		p.gone(op.slice.name, op.have.uid)
	} else {
		op.slice.learn(now)
	}
	p.written(op.slice)
}

// rename assigns a new name to a slice, because another program owns an object with its name.
func (p *planner) rename(s *slice) {
	delete(p.slices, s.name)
	s.name = "ces-" + rand.String(10)
	p.slices[s.name] = s
	p.mark(s)
}

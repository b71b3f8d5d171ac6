package ciliumendpointslices

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/util/rand"

	"github.com/waggle-net/waggle/pkg/ciliumv2"
	"github.com/waggle-net/waggle/pkg/k8sobjects"
)

// batch is how long a slice waits for further changes before it is written.
const batch = 100 * time.Millisecond

// planner assigns pods to slices and plans writes. It has the last known state of each object and makes no requests.
//
//   - a pod is put into the fullest slice of its namespace that has room, and stays there
//   - a slice that has a quarter of the pods that it may have, or fewer, is emptied into another one that has room for them
//   - a pod whose entry grows is moved when its slice becomes too large
//   - a pod that moves is in the new slice before it is taken out of the old one, unless that is too large
type planner struct {
	most   int
	pods   map[string]*pod            // by "namespace/name"
	slices map[string]*slice          // by name
	spaces map[string]map[*slice]bool // by namespace of the pods
	open   map[string]map[*slice]bool // of these, the slices with at least one pod and room for more
	nodes  map[string]int             // number of pods, by node
	queue  []*slice                   // slices that may have to be written, oldest first
	last   []*slice                   // the same, only because of nodes over their budget
	writes int                        // number of planned writes
	begun  bool                       // both lists were seen

	// unwritten are the slices of pods that were there in the beginning, until each has once had its desired content. Changes that come later are late, not missing.
	unwritten map[*slice]bool
	failures  map[*slice]*failure // last writes that failed

	budgets map[string]*rate.Limiter // of changes, by name of the node
	over    map[string]bool          // nodes that have exceeded theirs since last was empty
	yields  bool                     // the change that is being applied is of such a node
}

// pod is one CiliumEndpoint.
type pod struct {
	*k8sobjects.Sliced
	digest uint64 // of its entry
	size   int    // of its entry, in bytes of JSON
	home   *slice // nil before the planner has begun
}

// slice is one CiliumEndpointSlice, also one that does not exist yet.
type slice struct {
	name, namespace string
	pods            map[string]*pod // assigned pods, by name
	size            int             // of their entries
	have            *seen           // last known object; nil when there is none
	since           time.Time       // when it was queued; zero when it is not
	yields          bool            // it is queued in last
	wait            map[*slice]bool // slices that keep pods until this one is written with them
}

// seen is a slice of the API server.
type seen struct {
	name, namespace string
	uid, version    string
	number          uint64            // the version as a number; 0 when it is none
	digests         map[string]uint64 // of entries, by name of the pod
	doubled         bool              // a name comes twice
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
			p.place(old, p.room(s.Namespace(), home, 1, size))
		}
	case old.home == nil && p.begun:
		p.place(old, p.room(s.Namespace(), nil, 1, size))
	}
}

// displace takes a pod out of its home.
func (p *planner) displace(o *pod) {
	s := o.home
	delete(s.pods, o.Name())
	s.size -= o.size
	p.sort(s)
}

// count counts the pods of a node.
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
	for keeper := range s.wait { // it may keep the pod
		p.mark(keeper)
	}
	if n := len(s.pods); n > 0 && 4*n <= p.most {
		p.empty(s)
	}
}

// empty moves the pods of a slice into another one, if one has room for all.
func (p *planner) empty(s *slice) {
	into := p.room(s.namespace, s, len(s.pods), s.size)
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

// room returns the fullest slice of a namespace, other than one, that has room for n pods of a size and is not empty; nil when there is none.
func (p *planner) room(namespace string, not *slice, n, size int) (best *slice) {
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

// place makes a slice the home of a pod, a new one if it is nil.
func (p *planner) place(o *pod, s *slice) {
	if s == nil {
		s = p.add("ces-"+rand.String(10), o.Namespace())
	}
	o.home, s.pods[o.Name()] = s, o
	s.size += o.size
	p.sort(s)
	p.mark(s)
}

// sort keeps the slices that have room apart.
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

// begin assigns all pods, first to the existing slices that hold them. The first lists of pods and slices must have been applied.
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
			p.place(o, p.room(o.Namespace(), nil, 1, o.size))
		}
	}
	p.doubt()
}

// doubt has each slice looked at, before they are complete.
func (p *planner) doubt() {
	for _, name := range slices.Sorted(maps.Keys(p.slices)) {
		p.mark(p.slices[name])
		p.unwritten[p.slices[name]] = true
	}
}

// see applies the state of an object, unless that state or a newer one is known. What another program has changed is mended last, as the event of a write of our own, if it comes
// before the answer, looks the same: other programs gain no priority by their changes.
func (p *planner) see(o *seen) {
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

// learn notes a state of the object, and reports whether it was not known.
func (s *slice) learn(o *seen) bool {
	if s.have != nil && s.have.uid == o.uid && (o.version == s.have.version || o.number < s.have.number) {
		return false
	}
	s.have = o
	return true
}

// gone applies the deletion of an object, and reports whether it is missed. If uid is not empty, the object must have it.
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

// list replaces the states of all objects.
func (p *planner) list(all []*seen) {
	exist := map[string]bool{}
	for _, o := range all {
		exist[o.name] = true
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
	have   *seen                         // what there was; nil for an object that is created
	object *ciliumv2.CiliumEndpointSlice // nil for an object that is deleted
}

// plan returns the write that gives a slice its desired content; nil when it has that.
func (p *planner) plan(s *slice) *operation {
	pods := maps.Clone(s.pods)
	if s.have != nil && s.have.namespace == s.namespace {
		size := s.size
		for _, name := range slices.Sorted(maps.Keys(s.have.digests)) {
			o := p.pods[s.namespace+"/"+name]
			if o != nil && o.home != s && !o.home.serves(o, s.have) && size+o.size <= mostSize {
				pods[name] = o // until its home is written with it
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

// serves reports whether agents have the state of a pod from this slice rather than from another one, which has the pod too: it has the present state, or was written later.
func (s *slice) serves(o *pod, other *seen) bool {
	if s.have == nil || s.have.namespace != s.namespace {
		return false
	}
	digest, found := s.have.digests[o.Name()]
	return found && (digest == o.digest || s.have.number > other.number)
}

// holds reports whether a slice of the API server has some pods, as they are, and nothing else.
func (o *seen) holds(namespace string, pods map[string]*pod) bool {
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

// done applies a successful write, with the object that there is now; nil when there is none.
func (p *planner) done(op *operation, now *seen) {
	if now == nil {
		p.gone(op.slice.name, op.have.uid)
	} else {
		op.slice.learn(now)
	}
	p.written(op.slice)
}

// rename gives a slice another name, because another program has an object of its name.
func (p *planner) rename(s *slice) {
	delete(p.slices, s.name)
	s.name = "ces-" + rand.String(10)
	p.slices[s.name] = s
	p.mark(s)
}

package policycompiler

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/waggle-net/waggle/pkg/identity"
	"github.com/waggle-net/waggle/pkg/labels"
	"github.com/waggle-net/waggle/pkg/policy"
)

// Classes are the two classes of an identity, by number. Entries of the kind [Class] are about a class. The zero value means that the identity has no class.
// Numbers start at 1 and are not reused.
type Classes struct {
	Cluster   uint32 `json:"cluster"`   // all pods of a cluster
	Namespace uint32 `json:"namespace"` // the pods of a namespace; identities with other labels of the namespace have another class
}

// extent is the widest kind of class whose identities a choice by labels includes all or none.
type extent uint8

const (
	ofIdentity extent = iota // none: the choice depends on labels of single pods
	ofNamespace
	ofCluster
)

// extentOf returns the extent of a choice. Without requirements a choice includes every class.
func extentOf(choice *policy.Selector) extent {
	widest := ofCluster
	for _, r := range choice.Requirements {
		switch {
		case r.Source != labels.SourceK8s && r.Source != policy.AnySource, !sharedInNamespace(r.Key):
			return ofIdentity
		case r.Key != labels.KeyCluster && (r.Key != labels.KeyNamespace || r.Operator != policy.Exists):
			widest = ofNamespace
		}
	}
	return widest
}

// sharedInNamespace reports whether all pods of a namespace have the same value of a label. Pods cannot set such labels: see [labels.Surrounding].
func sharedInNamespace(key string) bool {
	return key == labels.KeyNamespace || key == labels.KeyCluster || strings.HasPrefix(key, labels.KeyNamespaceLabels+".")
}

// classLabels returns the labels that distinguish the classes of an identity. The labels of the cluster class have an empty namespace. An identity without a
// namespace has no classes. An identity with a label of another source and a key that namespaces share has none either, because a choice of any source may mean
// that label.
func classLabels(number uint32, all map[string]string) (cluster, namespace map[string]string, ok bool) {
	const inNamespace = labels.SourceK8s + ":" + labels.KeyNamespace
	if number < identity.ClusterMin || number > identity.ClusterMax || all[inNamespace] == "" {
		return nil, nil, false
	}
	cluster, namespace = map[string]string{inNamespace: ""}, map[string]string{}
	for label, value := range all {
		source, key, _ := strings.Cut(label, ":")
		switch {
		case source == labels.SourceReserved || !sharedInNamespace(key):
			continue
		case source != labels.SourceK8s:
			return nil, nil, false
		case key == labels.KeyCluster:
			cluster[label] = value
		}
		namespace[label] = value
	}
	return cluster, namespace, true
}

// class is a set of identities that have the same labels of their cluster or namespace.
type class struct {
	known
	key     string
	members int // identities, at least 1
}

// identityClasses are the classes that have members.
type identityClasses struct {
	started  bool // identities have classes
	classed  bool // choices are of classes where they can be: see [Resolver.SetClasses]
	byLabels map[string]*class
	byNumber map[uint32]*class
	last     uint32              // highest number so far
	changed  map[uint32]struct{} // see [Resolver.ChangedClasses]
	// applied are the classes that the datapath may have, by identity. Identities that were deleted or have changed their labels are included.
	applied map[uint32]Classes
	// unapplied are the identities for which the datapath may have other classes than the current ones.
	unapplied map[uint32]struct{}
	// restored are the numbers of classes in the previous run, by key. See [votes].
	restored map[string]uint32
}

func newIdentityClasses() identityClasses {
	return identityClasses{changed: map[uint32]struct{}{}, byLabels: map[string]*class{}, byNumber: map[uint32]*class{}, applied: map[uint32]Classes{}, unapplied: map[uint32]struct{}{},
		restored: map[string]uint32{}}
}

// decides reports whether a choice must be evaluated for k: an identity without classes, any identity if the extent is [ofIdentity], or a class of the extent.
func (c *selectors) decides(s *selector, k *known) bool {
	extent := s.extent
	if !c.classed {
		extent = ofIdentity
	}
	return k.extent == extent || k.kind == Identity && k.classes[0] == nil
}

// inOneOf reports whether an identity has one of some classes. k may be nil.
func (k *known) inOneOf(classes map[uint32]struct{}) bool {
	return k != nil && slices.ContainsFunc(k.classes[:], func(of *class) bool {
		if of == nil {
			return false
		}
		_, found := classes[of.identity]
		return found
	})
}

// classify sets the classes of an identity. While the datapath has other classes for its number, the identity has none and choices include the identity itself,
// so that entries about its labels always apply.
func (c *selectors) classify(k *known) {
	have, applied := c.applied[k.identity]
	cluster, namespace, ok := classLabels(k.identity, k.labels)
	if !ok || !c.started {
		c.setClasses(k, [2]*class{})
		return
	}
	now := [2]*class{c.classOf(ofCluster, cluster), c.classOf(ofNamespace, namespace)}
	numbers := Classes{now[0].identity, now[1].identity}
	if !applied {
		c.applied[k.identity], have = numbers, numbers
		c.unapplied[k.identity] = struct{}{}
	}
	c.setClasses(k, now)
	if have != numbers {
		c.setClasses(k, [2]*class{})
	}
}

// setClasses makes an identity a member of other classes, or of none. It deletes classes that have no member left.
func (c *selectors) setClasses(k *known, now [2]*class) {
	before := k.classes
	k.classes = now
	for _, of := range now {
		if of != nil {
			of.members++
		}
	}
	for _, of := range before {
		if of == nil {
			continue
		}
		if of.members--; of.members > 0 {
			continue
		}
		delete(c.byLabels, of.key)
		delete(c.byNumber, of.identity)
		c.changed[of.identity] = struct{}{}
		for _, s := range of.chosen {
			s.lose(of.peer)
		}
	}
	if _, applied := c.applied[k.identity]; applied && now[0] == nil {
		c.unapplied[k.identity] = struct{}{}
	}
}

// classOf returns the class with some labels. A class has the number that it had in the previous run, otherwise a new one.
func (c *selectors) classOf(e extent, labels map[string]string) *class {
	key := classKey(e, labels)
	if of := c.byLabels[key]; of != nil {
		return of
	}
	number, restored := c.restored[key]
	if !restored {
		c.last++
		number = c.last
	}
	of := &class{key: key, known: known{peer: peer{Class, number}, extent: e, labels: labels}}
	c.byLabels[key], c.byNumber[number] = of, of
	c.changed[number] = struct{}{}
	c.choose(&of.known, settled)
	return of
}

// classKey encodes an extent and labels. Different labels have different keys.
func classKey(e extent, labels map[string]string) string {
	key := []byte{byte(e)}
	for _, label := range slices.Sorted(maps.Keys(labels)) {
		key = strconv.AppendQuote(key, label)
		key = strconv.AppendQuote(key, labels[label])
	}
	return string(key)
}

// SetClasses sets whether all programs of the datapath support entries of the kind [Class]. If they do, a rule whose peers are all pods, or all pods of some
// namespaces, has an entry for each of these classes. Otherwise it has an entry for each identity. The default is false.
func (r *Resolver) SetClasses(on bool) {
	c := r.selectors
	if c.classed == on {
		return
	}
	c.classed = on
	var changed []*selector
	for _, s := range c.byKey {
		if s.choice == nil || s.extent == ofIdentity {
			continue
		}
		changed = append(changed, s)
		if !s.pending {
			s.pending = true
			c.pending = append(c.pending, s)
		}
		for user := range s.users {
			user.invalidate()
		}
	}
	c.unchoose(changed)
	for _, u := range r.unselected {
		*u = unselected{0, len(c.identities)} // classes are fewer peers than their identities
	}
	r.mayFit = true
	r.podsChanged()
}

// StartClasses makes identities have classes. have are the classes that the datapath has, by identity; last is the highest number of a class in its entries.
// Known identities should have been upserted before: their classes keep their numbers.
func (r *Resolver) StartClasses(have map[uint32]Classes, last uint32) {
	c := r.selectors
	c.started, c.last = true, last
	votes := votes{}
	for number, classes := range have {
		c.applied[number], c.unapplied[number] = classes, struct{}{}
		c.last = max(c.last, classes.Cluster, classes.Namespace)
		if k := c.identities[number]; k != nil {
			cluster, namespace, ok := classLabels(number, k.labels)
			if ok {
				votes.add(classes.Cluster, classKey(ofCluster, cluster))
				votes.add(classes.Namespace, classKey(ofNamespace, namespace))
			}
		}
	}
	c.restored = votes.count()
	for number := range c.identities {
		c.arrivals[number] = struct{}{}
	}
}

// votes counts the identities of the previous run by the number and the key of their class. An identity that was deleted and created again with other labels
// has a number with the key of another class. So a class keeps the number that most of its identities have, if most identities with the number are of the
// class. The other identities with the number, and the other identities of the class, have no classes until the datapath has removed the previous ones. After a
// tie no identity has classes.
type votes map[vote]int

type vote struct {
	number uint32
	key    string
}

func (v votes) add(number uint32, key string) {
	if number != 0 {
		v[vote{number, key}]++
	}
}

// count returns the numbers by key.
func (v votes) count() map[string]uint32 {
	byNumber, byKey := winners(v, func(of vote) uint32 { return of.number }), winners(v, func(of vote) string { return of.key })
	numbers := map[string]uint32{}
	for key, of := range byKey {
		if of.number != 0 && byNumber[of.number] == of {
			numbers[key] = of.number
		}
	}
	return numbers
}

// winners returns the vote of each group that most identities have, or the zero vote if several have as many.
func winners[G comparable](v votes, group func(vote) G) map[G]vote {
	best, most := map[G]vote{}, map[G]int{}
	for of, count := range v {
		switch g := group(of); {
		case count > most[g]:
			best[g], most[g] = of, count
		case count == most[g]:
			best[g] = vote{}
		}
	}
	return best
}

// ClassesOf returns the current classes of an identity, which the datapath must have. An unknown identity has none.
func (r *Resolver) ClassesOf(number uint32) Classes {
	r.settle()
	k := r.selectors.identities[number]
	if k == nil || k.classes[0] == nil {
		return Classes{}
	}
	return Classes{k.classes[0].identity, k.classes[1].identity}
}

// ChangedClasses returns the classes that were created or deleted since the last call, by number: the labels that all identities of a class share, or nil for a
// class without identities.
func (r *Resolver) ChangedClasses() map[uint32]map[string]string {
	r.settle()
	if len(r.selectors.changed) == 0 {
		return nil
	}
	changed := map[uint32]map[string]string{}
	for number := range r.selectors.changed {
		if changed[number] = nil; r.selectors.byNumber[number] != nil {
			changed[number] = r.selectors.byNumber[number].labels
		}
	}
	r.selectors.changed = map[uint32]struct{}{} // iterating over a map takes time by its largest size
	return changed
}

// InClass reports whether an identity with some labels is in the class whose identities share others: see [Resolver.ChangedClasses].
func InClass(number uint32, all, shared map[string]string) bool {
	cluster, namespace, ok := classLabels(number, all)
	return ok && (maps.Equal(shared, cluster) || maps.Equal(shared, namespace))
}

// UnappliedClasses lists the identities for which the datapath may have other classes than [Resolver.ClassesOf], sorted.
//
// Classes must be written before any peer may be known by the identity, and before entries of [Resolver.Compile] are in use. If [Resolver.ClassesOf] returns
// none for an identity, the datapath's classes must be removed when no peer can be known by the identity, or when all policies in use have the denies of
// [Resolver.Compile] about the identity itself.
func (r *Resolver) UnappliedClasses() []uint32 {
	r.settle()
	return slices.Sorted(maps.Keys(r.selectors.unapplied))
}

// ClassesApplied records that the datapath has the classes of [Resolver.ClassesOf] for an identity. If these are none, the identity can get classes again.
func (r *Resolver) ClassesApplied(number uint32) {
	c := r.selectors
	if delete(c.unapplied, number); len(c.unapplied) == 0 {
		c.unapplied = map[uint32]struct{}{} // iterating over a map takes time by its largest size
	}
	k := c.identities[number]
	if _, applied := c.applied[number]; !applied || k != nil && k.classes[0] != nil {
		return
	}
	delete(c.applied, number)
	if k != nil {
		c.arrivals[number] = struct{}{}
	}
}

// reclassed handles a change of the classes of an identity: rules that name ports of its pods are compiled again.
func (r *Resolver) reclassed(number uint32, classed bool) {
	if of := r.podsOf[number]; classed && of != nil && r.namesPortsOf(of) {
		r.podsChanged()
	}
}

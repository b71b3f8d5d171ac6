package kubetest

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
)

// store holds the objects of all resources and their changes. Stored objects are never changed in place.
type store struct {
	mu        sync.Mutex
	version   int64                                            // of the newest change
	compacted int64                                            // changes up to this version are forgotten
	objects   map[string]map[string]*unstructured.Unstructured // by resource, then "namespace/name"
	keys      map[string][]string                              // sorted keys of objects, by resource; missing after an object was added or removed
	changes   []change                                         // oldest first
	changed   chan struct{}                                    // closed and replaced at every change
	empty     map[string]int                                   // number of lists of a resource that will return no items
	doubled   bool                                             // every event is sent twice
	watchList bool                                             // sendInitialEvents is supported
	bookmarks map[string]int                                   // requested bookmarks, by resource
}

// change is one change of an object.
type change struct {
	version  int64
	resource string
	kind     watch.EventType
	old, new *unstructured.Unstructured // old is nil for an added object; new of a deleted object has the version of the deletion
}

func newStore() *store {
	return &store{
		version: 1, objects: map[string]map[string]*unstructured.Unstructured{}, changed: make(chan struct{}),
		keys: map[string][]string{}, empty: map[string]int{}, bookmarks: map[string]int{},
	}
}

// wake notifies all waiters of a change. The caller must hold the lock.
func (s *store) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

func key(namespace, name string) string { return namespace + "/" + name }

// put stores object, whose ownership passes to the store, as the next version. The caller must hold the lock.
func (s *store) put(r kubeapi.Resource, object *unstructured.Unstructured) *unstructured.Unstructured {
	k := key(object.GetNamespace(), object.GetName())
	old := s.objects[r.String()][k]
	kind := watch.Modified
	if old == nil {
		kind = watch.Added
		delete(s.keys, r.String())
		stampNew(object, s.version+1)
	} else {
		object.SetUID(old.GetUID())
		object.SetCreationTimestamp(old.GetCreationTimestamp())
	}
	s.version++
	object.SetResourceVersion(strconv.FormatInt(s.version, 10))
	if s.objects[r.String()] == nil {
		s.objects[r.String()] = map[string]*unstructured.Unstructured{}
	}
	s.objects[r.String()][k] = object
	s.changes = append(s.changes, change{s.version, r.String(), kind, old, object})
	s.wake()
	return object
}

func stampNew(object *unstructured.Unstructured, version int64) {
	if object.GetUID() == "" {
		object.SetUID(uid(version))
	}
	if created := object.GetCreationTimestamp(); created.IsZero() {
		_ = unstructured.SetNestedField(object.Object, time.Now().UTC().Format(time.RFC3339), "metadata", "creationTimestamp")
	}
}

// remove deletes an object and reports whether it existed. The caller must hold the lock.
func (s *store) remove(resource, k string) bool {
	old := s.objects[resource][k]
	if old == nil {
		return false
	}
	delete(s.objects[resource], k)
	delete(s.keys, resource)
	s.version++
	last := old.DeepCopy()
	last.SetResourceVersion(strconv.FormatInt(s.version, 10))
	s.changes = append(s.changes, change{s.version, resource, watch.Deleted, old, last})
	s.wake()
	return true
}

// sorted returns the objects of a resource by namespace and name. The caller must hold the lock.
func (s *store) sorted(resource string) []*unstructured.Unstructured {
	keys := s.sortedKeys(resource)
	out := make([]*unstructured.Unstructured, 0, len(keys))
	for _, k := range keys {
		out = append(out, s.objects[resource][k])
	}
	return out
}

// sortedKeys returns the keys of the objects of a resource. Each page of a list needs them. The caller must hold the lock.
func (s *store) sortedKeys(resource string) []string {
	keys, found := s.keys[resource]
	if !found {
		keys = slices.Sorted(maps.Keys(s.objects[resource]))
		s.keys[resource] = keys
	}
	return keys
}

// after returns the changes of a resource after version; ok is false if some of them are forgotten. The caller must hold the lock.
func (s *store) after(resource string, version int64) (out []change, ok bool) {
	if version < s.compacted {
		return nil, false
	}
	from, _ := slices.BinarySearchFunc(s.changes, version+1, func(c change, v int64) int { return int(c.version - v) })
	for _, c := range s.changes[from:] {
		if c.resource == resource {
			out = append(out, c)
		}
	}
	return out, true
}

func uid(version int64) types.UID {
	return types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012d", version))
}

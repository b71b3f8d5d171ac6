package kubetest

import (
	"maps"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Backup is what a server had at a time.
type Backup struct {
	version int64
	objects map[string]map[string]*unstructured.Unstructured // never altered
}

// Backup returns what the server has.
func (s *Server) Backup() Backup {
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	return Backup{s.store.version, cloneObjects(s.store.objects)}
}

// Restore makes a stopped server have what it had at the time of a backup, as when etcd is restored: versions go on from those of the backup, and all changes
// are forgotten.
func (s *Server) Restore(b Backup) {
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	s.store.version, s.store.compacted, s.store.changes = b.version, b.version, nil
	s.store.objects = cloneObjects(b.objects)
	s.store.wake()
}

func cloneObjects(in map[string]map[string]*unstructured.Unstructured) map[string]map[string]*unstructured.Unstructured {
	out := map[string]map[string]*unstructured.Unstructured{}
	for resource, objects := range in {
		out[resource] = maps.Clone(objects)
	}
	return out
}

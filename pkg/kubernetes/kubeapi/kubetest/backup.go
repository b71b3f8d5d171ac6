package kubetest

import (
	"maps"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Backup is the contents of a server at a time.
type Backup struct {
	version int64
	objects map[string]map[string]*unstructured.Unstructured // never changed in place
}

// Backup returns the contents of the server.
func (s *Server) Backup() Backup {
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	return Backup{s.store.version, cloneObjects(s.store.objects)}
}

// Restore resets a stopped server to a backup, as after a restore of etcd: versions continue from the backup, and all changes are forgotten.
func (s *Server) Restore(b Backup) {
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	s.store.version, s.store.compacted, s.store.changes = b.version, b.version, nil
	s.store.objects = cloneObjects(b.objects)
	clear(s.store.keys)
	s.store.wake()
}

func cloneObjects(in map[string]map[string]*unstructured.Unstructured) map[string]map[string]*unstructured.Unstructured {
	out := map[string]map[string]*unstructured.Unstructured{}
	for resource, objects := range in {
		out[resource] = maps.Clone(objects)
	}
	return out
}

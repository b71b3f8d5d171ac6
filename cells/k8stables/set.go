package k8stables

import (
	"fmt"

	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// set is what a complete reading gave: all rows by key.
type set struct {
	nodes      map[string]*k8s.Node
	pods       map[string]*k8s.Pod
	namespaces map[string]*k8s.Namespace
	services   map[string]*k8s.Service
	policies   map[string]*k8s.NetworkPolicy
	manifests  map[string]manifest
}

// merge puts the documents of all files together, in their order. Where two have the same object, the first wins and
// the other says so.
func merge(documents []parsed) set {
	s := set{map[string]*k8s.Node{}, map[string]*k8s.Pod{}, map[string]*k8s.Namespace{}, map[string]*k8s.Service{},
		map[string]*k8s.NetworkPolicy{}, map[string]manifest{}}
	first := map[string]manifest{}
	for _, d := range documents {
		if object, ok := d.object.(interface{ Key() string }); ok {
			id := d.Kind + " " + object.Key()
			if winner, doubled := first[id]; doubled {
				d.Status = ignored
				d.Reason = fmt.Sprintf("%s line %d has the same object and comes first", winner.File, winner.Line)
			} else {
				first[id] = d.manifest
				s.add(d.object)
			}
		}
		s.manifests[d.Key()] = d.manifest
	}
	return s
}

func (s *set) add(object any) {
	switch o := object.(type) {
	case *k8s.Node:
		s.nodes[o.Key()] = o
	case *k8s.Pod:
		s.pods[o.Key()] = o
	case *k8s.Namespace:
		s.namespaces[o.Key()] = o
	case *k8s.Service:
		s.services[o.Key()] = o
	case *k8s.NetworkPolicy:
		s.policies[o.Key()] = o
	}
}

// rejects counts what is wrong and describes the first of it.
func (s *set) rejects() (count int, first manifest) {
	for _, m := range s.manifests {
		if m.Status != rejected {
			continue
		}
		if count++; count == 1 || m.Key() < first.Key() {
			first = m
		}
	}
	return count, first
}

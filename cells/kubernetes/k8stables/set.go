package k8stables

import (
	"fmt"

	"github.com/waggle-net/waggle/pkg/kubernetes/k8sobjects"
)

// set is the result of one reading of all files: the rows by table and key, and all documents by key.
type set struct {
	rows      map[string]map[string]k8sobjects.Row
	manifests map[string]manifest
}

// merge combines the documents of all files, in their order. Of two documents with the same object the first wins, and the other one is ignored with
// a reason.
func merge(documents []parsed) set {
	s := set{map[string]map[string]k8sobjects.Row{}, map[string]manifest{}}
	first := map[string]manifest{}
	for _, d := range documents {
		if object := d.object; object != nil {
			id := d.Kind + " " + object.Key()
			if winner, doubled := first[id]; doubled {
				d.Status = ignored
				d.Reason = fmt.Sprintf("%s line %d has the same object and comes first", winner.File, winner.Line)
			} else {
				first[id] = d.manifest
				s.add(d.Kind, object)
			}
		}
		s.manifests[d.Key()] = d.manifest
	}
	return s
}

// tableOf maps the kind of an object to its table.
var tableOf = map[string]string{
	"Node": "k8s-nodes", "Pod": "k8s-pods", "Namespace": "k8s-namespaces", "Service": "k8s-services",
	"EndpointSlice": "k8s-endpointslices", "NetworkPolicy": "k8s-networkpolicies",
	"CiliumNode": "cilium-nodes", "CiliumEndpoint": "cilium-endpoints", "CiliumIdentity": "cilium-identities",
	"CiliumNetworkPolicy": "cilium-networkpolicies", "CiliumClusterwideNetworkPolicy": "cilium-networkpolicies",
	"CiliumCIDRGroup": "cilium-cidrgroups",
}

func (s *set) add(kind string, row k8sobjects.Row) {
	table := tableOf[kind]
	if s.rows[table] == nil {
		s.rows[table] = map[string]k8sobjects.Row{}
	}
	s.rows[table][row.Key()] = row
}

// rejects counts the rejected documents and returns the first of them.
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

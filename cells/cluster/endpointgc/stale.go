package endpointgc

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
)

const (
	rounds         = 2
	roundsForMany  = 3 // when more than half of all objects would be deleted
	fewAreNoMany   = 10
	mostInOneRound = 500
)

// object is the metadata of an object.
type object = metav1.PartialObjectMetadata

// world has the metadata of all objects. Endpoints and CiliumNodes were listed before Pods and Nodes, so that the Pod or Node of a new object is in the lists.
type world struct {
	endpoints, ciliumNodes []object
	pods                   map[string]string // "namespace/name" -> UID
	nodes                  map[string]bool
}

// suspect is an object whose Pod or Node is missing.
type suspect struct {
	resource kubeapi.Resource
	object   object
	reason   string
	pod      bool // its Pod is missing; otherwise its Node is
}

// key returns "namespace/name", or "name" without a namespace.
func key(o object) string {
	if o.Namespace == "" {
		return o.Name
	}
	return o.Namespace + "/" + o.Name
}

// stale returns the objects whose Pod or Node is missing. It depends only on the lists.
func (w world) stale() (out []suspect) {
	for _, o := range w.endpoints {
		uid, named := w.pods[key(o)]
		owner, ours := podOwner(o)
		node := o.Labels[ciliumv2.NodeLabel]
		switch {
		case !ours: // has another owner, such as a node; Kubernetes deletes it with its owner
		case !named:
			out = append(out, suspect{kubeapi.CiliumEndpoints, o, "its Pod is gone", true})
		case owner != "" && owner != uid:
			out = append(out, suspect{kubeapi.CiliumEndpoints, o, "its Pod was replaced", true})
		case node != "" && !w.nodes[node]:
			out = append(out, suspect{kubeapi.CiliumEndpoints, o, fmt.Sprintf("its node %s is gone", node), false})
		}
	}
	for _, o := range w.ciliumNodes {
		if !w.nodes[o.Name] && len(o.OwnerReferences) == 0 && o.Labels[ciliumv2.ManagedByLabel] == ciliumv2.ManagedByUs {
			out = append(out, suspect{kubeapi.CiliumNodes, o, "its Node is gone", false})
		}
	}
	return out
}

// podOwner returns the UID of the Pod that owns an object. An object without any owner belongs to the Pod of the same name with any UID, and the result is
// empty. Ours is false if the object has only other owners.
func podOwner(o object) (uid string, ours bool) {
	for _, r := range o.OwnerReferences {
		if r.Kind == "Pod" {
			return string(r.UID), true
		}
	}
	return "", len(o.OwnerReferences) == 0
}

// node returns the name of the Node to which a suspect belongs.
func (s suspect) node() string {
	if s.resource.Plural == kubeapi.CiliumNodes.Plural {
		return s.object.Name
	}
	return s.object.Labels[ciliumv2.NodeLabel]
}

// needed returns the number of rounds in a row that must find the suspects stale.
func needed(suspects, all int) int {
	if suspects > fewAreNoMany && suspects*2 > all {
		return roundsForMany
	}
	return rounds
}

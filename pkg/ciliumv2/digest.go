package ciliumv2

import (
	"encoding/json"
	"hash/fnv"
)

// Labels of the objects that we make.
const (
	NodeLabel      = "waggle.io/node" // of a CiliumEndpoint: the node that writes it
	ManagedByLabel = "app.kubernetes.io/managed-by"
	ManagedByUs    = "waggle"
)

// ReceivesAnnotation of a CiliumNode says what its agent takes from other nodes; pkg/tables/nodes has its words. Agents of releases that do not know it delete it.
const ReceivesAnnotation = "waggle.io/receives"

// PodRangesAnnotation of a CiliumNode lists the pod ranges of the node that its pods have addresses of, separated by commas: the present ones, and former ones until the
// last such pod is deleted. An admission policy has agents list only ranges that the object has, or had when they were listed.
const PodRangesAnnotation = "waggle.io/pod-ranges"

// Digest stands for all that a node writes into a CiliumEndpoint: labels, the pod that owns it and the status. It is never 0.
func Digest(o *CiliumEndpoint) uint64 {
	var owners []string
	for _, owner := range o.OwnerReferences {
		owners = append(owners, owner.Kind, string(owner.UID))
	}
	text, err := json.Marshal([]any{o.Labels, owners, o.Status})
	if err != nil {
		panic(err) // none of these types can fail
	}
	h := fnv.New64a()
	_, _ = h.Write(text) // never fails
	return max(1, h.Sum64())
}

package ciliumv2

import (
	"encoding/json"
	"hash/fnv"
)

// Labels of the objects that agents create.
const (
	NodeLabel      = "waggle.io/node" // of a CiliumEndpoint: the node whose agent writes it
	ManagedByLabel = "app.kubernetes.io/managed-by"
	ManagedByUs    = "waggle"
)

// ReceivesAnnotation of a CiliumNode lists the forms of packets that its agent accepts from other nodes; pkg/tables/nodes defines the values. Agents of
// releases without the annotation delete it.
const ReceivesAnnotation = "waggle.io/receives"

// PodRangesAnnotation of a CiliumNode lists the pod ranges from which pods of the node have addresses, separated by commas: the current ones, and previous ones
// until their last pod is deleted. An admission policy allows an agent to list only ranges that the object has, or had when they were first listed.
const PodRangesAnnotation = "waggle.io/pod-ranges"

// Digest returns a hash of the fields of a CiliumEndpoint that a node writes: labels, owner references and status. It is never 0.
func Digest(o *CiliumEndpoint) uint64 {
	var owners []string
	for _, owner := range o.OwnerReferences {
		owners = append(owners, owner.Kind, string(owner.UID))
	}
	text, err := json.Marshal([]any{o.Labels, owners, o.Status})
	if err != nil {
		panic(err) // these types cannot fail to marshal
	}
	h := fnv.New64a()
	_, _ = h.Write(text) // never fails
	return max(1, h.Sum64())
}

// Package ciliumendpoints publishes the pods of this node to the other nodes: one CiliumEndpoint for each.
//
// It reads endpoints, endpoint-identities, endpoint-states, k8s-pods, local-node and cilium-endpoints, and writes
// desired-ciliumendpoints, of which a reconciler makes objects. It owns the objects that carry the label waggle.io/node with
// the name of this node, and keeps nothing over restarts: what is ours and not wanted is found by that label.
package ciliumendpoints

// Package ciliumendpoints publishes the pods of this node to the other nodes, as one CiliumEndpoint object each.
//
// It reads endpoints, endpoint-identities, endpoint-states, k8s-pods, local-node and cilium-endpoints, and writes desired-ciliumendpoints. A reconciler creates
// objects from this table. The cell owns the objects whose label waggle.io/node has the name of this node, and stores nothing across restarts: the label
// identifies objects without a row.
package ciliumendpoints

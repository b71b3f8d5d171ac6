// Package ciliumendpoints publishes the pods of this node to the other nodes, as one CiliumEndpoint object each.
//
// Tables in: endpoints, endpoint-identities, endpoint-states, k8s-pods, local-node, cilium-endpoints. Table out: desired-ciliumendpoints, from which a
// reconciler creates the objects. The cell owns the objects whose label waggle.io/node has the name of this node, and stores nothing across restarts: the label
// identifies objects without a row.
package ciliumendpoints

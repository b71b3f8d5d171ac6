// Package k8snode writes to the Node object of this node: annotations that describe its network, the condition
// NetworkUnavailable, the removal of the taint that keeps pods away until there is a network, and by flag a condition that
// says which paths to other nodes lose packets.
//
// Tables in: k8s-nodes (the row of this node), sources, local-node, self-tests, path-tests, and those of package
// readiness. Table out: node-updates, one row for each thing that is written. Outside the agent it owns, in this node's Node,
// the annotations that "waggle.io/wrote" lists, and the conditions. It takes away nothing else than taints with the key of
// --agent-not-ready-taint-key.
//
// NetworkUnavailable and taint are written only once a real attach has passed on this node and pods can be attached. They are never
// set back: pods keep their network while the agent is away. After a restart everything is compared again, and written
// only where it differs. Without an API server the cell does nothing.
package k8snode

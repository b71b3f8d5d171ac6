// Package k8snode writes to the Node object of this node: annotations that describe its network, the condition
// NetworkUnavailable, the removal of the taint that keeps pods away until the network is available, and by flag a condition that
// names the paths to other nodes that lose packets.
//
// Tables in: k8s-nodes (the row of this node), sources, local-node, self-tests, path-tests, and those of [readiness.Tables]. Table out: node-updates, one row
// for each item. Outside the agent it owns, in this node's Node, the annotations that "waggle.io/wrote" lists, and the conditions. It removes only taints with
// the key of --agent-not-ready-taint-key.
//
// The cell writes NetworkUnavailable and the taint only after a real attach has passed on this node and pods can be attached. It never
// reverts them: pods keep their network while the agent is not running. After a restart the cell compares everything again and writes
// only differences. Without an API server the cell does nothing.
package k8snode

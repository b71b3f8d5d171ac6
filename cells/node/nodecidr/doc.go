// Package nodecidr chooses the pod CIDRs of this node.
//
// Tables in: k8s-nodes and cilium-nodes (the rows of this node), sources (whether these tables are usable), node-addresses. Table out: node-cidrs, with every
// candidate and the reason for its result. With an API server a CIDR is required and comes from the Node or, with --ipam=cluster-pool, from the CiliumNode. A
// CIDR that the agent itself wrote to these objects cannot be chosen. The cell owns nothing in the kernel and keeps no state across restarts. A CIDR that was
// chosen in this run stays chosen when no source names a CIDR any more. After a start, the CIDRs of the copy on disk are used if the API server has not
// listed the objects within 5 s, or 1 s if an attempt has failed: the node may have left the cluster and come back with another CIDR while the agent was stopped.
package nodecidr

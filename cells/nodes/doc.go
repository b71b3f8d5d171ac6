// Package nodes maintains the list of the cluster's nodes, with the addresses and pod ranges of each.
//
// Tables in: k8s-nodes, cilium-nodes (once k8s-nodes is usable), local-node, sources. Table out: nodes, complete once those are. It owns nothing in the kernel.
//
// Objects of different nodes may conflict: two nodes with one address, overlapping ranges, a CiliumNode that claims an address of another node.
// resolve.go defines the precedence, by which the agent of one node can take nothing that stands in the Nodes of others, and its kubelet one address of each family. A
// refused claim is listed in the row of its claimant with the name of the owner, and in the health of the module. The table is computed again after a restart; which ranges nodes had stands in a file.
package nodes

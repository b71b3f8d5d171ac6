// Package nodes says which nodes the cluster has, and which of them has which addresses and ranges of pods.
//
// Tables in: k8s-nodes, cilium-nodes, local-node. Table out: nodes, complete once those are. It owns nothing in the kernel.
//
// Objects of different nodes may claim the same: two nodes with one address, ranges that overlap, a CiliumNode whose agent claims an address of
// another node. What this node knows of itself counts first, then ranges in Nodes, addresses in Nodes, addresses in CiliumNodes and ranges in
// CiliumNodes; of two equal claims the older node's. A claim that does not count stands in its row with the node that has it, and in the
// health of the module. After a restart the table is computed afresh.
package nodes

// Package nodelist maintains the list of the cluster's nodes, with the addresses and pod ranges of each.
//
// Tables in: k8s-nodes, cilium-nodes (once k8s-nodes is usable), local-node, sources. Table out: nodes, complete once those are. It owns nothing in the kernel.
//
// Objects of different nodes may conflict: two nodes with one address, overlapping ranges, a CiliumNode that claims an address of another node. resolve.go
// defines the precedence: the agent of one node cannot take an address or range in the Node of another, and its kubelet can take only one address of each
// family. The row of the claimant and the health of the module list a refused claim with the name of the owner. The table is computed again after a
// restart; files store the former ranges of nodes, and the claims of nodes whose objects were deleted.
package nodelist

// Package ciliumnode keeps the CiliumNode of this node: other nodes, the cluster role and Cilium's tools read there what
// its addresses are, and what it receives.
//
// Tables in: k8s-nodes and cilium-nodes (the rows of this node), sources, local-node, endpoints; with a tunnel overlays, node-slots and
// attachments. Table out: cilium-node-updates, whose one row says how far it is. Outside the agent it owns the CiliumNode of the same name as the Node, except
// spec.ipam.podCIDRs: with --ipam=cluster-pool those are the cluster role's and are never written here.
//
// The object is made as soon as the Node is known, before any CIDR is, and made again when somebody deletes it. It belongs
// to the Node by an owner reference, and follows when the Node is made anew under the same name. After a restart what stands
// there stays until this node knows better. An agent on another machine with the same node name is named, and not written
// against without end. Without an API server the cell does nothing.
package ciliumnode

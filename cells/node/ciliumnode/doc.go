// Package ciliumnode maintains the CiliumNode of this node. Other nodes, the cluster role and Cilium's tools read there the addresses of this node and the
// encapsulations that it receives.
//
// Tables in: k8s-nodes and cilium-nodes (the rows of this node), sources, local-node, endpoints; with a tunnel overlays, node-slots and attachments, with
// --routing-mode=hybrid also firewall-chains. Table out: cilium-node-updates, whose one row reports the progress. Outside the agent it owns the CiliumNode of the same name as the Node, except spec.ipam.podCIDRs:
// with --ipam=cluster-pool the cluster role owns these.
//
// The cell creates the object as soon as the Node is known, before any CIDR is known, and again after a deletion. An owner reference binds the object to the
// Node; the cell updates the reference when the Node is recreated under the same name. After a restart the content of the object stays until this node knows
// newer values. If an agent on another machine has the same node name, the cell reports that agent and limits its own writes. Without an API server the cell
// does nothing.
package ciliumnode

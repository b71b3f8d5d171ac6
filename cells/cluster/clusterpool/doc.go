// Package clusterpool assigns pod CIDRs to nodes from one pool for the whole cluster (--ipam=cluster-pool).
//
// It runs in the cluster role, while this replica leads (table leadership). It reads all CiliumNodes in a quorum list, assigns the lowest free subnet to every
// node that lacks a CIDR of an enabled family, and writes only spec.ipam.podCIDRs. It never changes an assigned CIDR. Table in: leadership. Table out:
// cluster-pool (CIDRs and faults of each node). The objects are the only storage: after a restart, or in another replica, the cell reads everything again
// before it assigns a CIDR.
package clusterpool

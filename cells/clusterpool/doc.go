// Package clusterpool gives each node its pod CIDRs out of one pool for the whole cluster (--ipam=cluster-pool).
//
// It runs in the cluster role, while this replica leads (table leadership). It reads all CiliumNodes in a quorum list, gives
// every one that lacks a CIDR of an enabled family the lowest free subnet, and writes it into spec.ipam.podCIDRs and nothing
// else. What a node has is never changed. The table cluster-pool shows what each node has and what is wrong with it. The
// objects are the only memory: after a restart, or in another replica, everything is read anew before anything is given.
package clusterpool

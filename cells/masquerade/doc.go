// Package masquerade tells the datapath under which addresses packets leave the node, and which pods' packets keep their own.
//
// Tables in: devices, node-addresses, local-node, nodes, ip-masq-agent. Tables out: netdevs (devices that lead out, with the address under which this node
// speaks for others there), complete once devices and addresses are, and unmasqueraded (prefixes towards which pods keep their addresses),
// complete once the pod CIDRs of all nodes and the configuration of the ip-masq-agent are. Kernel state: every entry of the maps of these names; no other cell
// writes them.
//
// After a restart the maps hold what the run before wrote. Each row is written once more, also where its entry is right; an
// entry without a row is removed once its table is complete. Entries that somebody else changes or adds are found when the maps are read back, each --verify-interval.
package masquerade

// Package masquerademaps writes for the datapath the source addresses of packets that leave the node, and the prefixes towards which pods keep their own addresses.
//
// Tables in: devices, node-addresses, local-node, nodes, ip-masq-agent. Tables out: netdevs (devices that lead out, with the source address of this node for
// masqueraded packets; complete once devices and addresses are), unmasqueraded (prefixes towards which pods keep their addresses; complete once the pod CIDRs
// of all nodes and the configuration of the ip-masq-agent are). Kernel state: every entry of the maps of these names; no other cell writes them.
//
// After a restart the maps have the entries of the previous run. Each row is written again, even if its entry is correct; an
// entry without a row is removed once its table is complete. The verification, each --verify-interval, finds entries that another program changed or added.
package masquerademaps

// Package nodeaddressfinder finds the addresses that belong to the node itself.
//
// Tables in: devices, device-addresses, k8s-nodes (the row of this node). Table out: node-addresses (complete once device-addresses is). The cell owns no state
// in the kernel. After a restart the table is computed again.
package nodeaddressfinder

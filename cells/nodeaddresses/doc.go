// Package nodeaddresses finds the addresses that belong to the node itself.
//
// Tables in: devices, device-addresses, k8s-nodes (this node's). Table out: node-addresses, complete once the first two are. It owns nothing in the
// kernel. After a restart the table is computed afresh.
package nodeaddresses

// Package nodeaddresses finds the addresses that belong to the node itself.
//
// Tables in: devices, device-addresses. Table out: node-addresses, complete once both inputs are. It owns nothing in the
// kernel. After a restart the table is computed afresh.
package nodeaddresses

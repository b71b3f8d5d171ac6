// Package mtu decides how large the packets of pods may be.
//
// Tables in: devices, device-addresses, routes, local-node. Table out: mtus, one row, present from the first list of devices on. It
// owns nothing in the kernel. After a restart the row is computed afresh.
package mtu

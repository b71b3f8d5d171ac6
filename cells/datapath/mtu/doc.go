// Package mtu computes the MTU of pod links and of routes of pods.
//
// Tables in: devices, device-addresses, routes, local-node. Table out: mtus (one row, present once devices is complete, with --mtu at once). The cell owns no
// state in the kernel. After a restart the row is computed again.
package mtu

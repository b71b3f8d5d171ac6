// Package localnode describes this node in one row, for everybody who needs its ranges, its router addresses (the
// gateway of all pods here) and its own addresses.
//
// It reads node-cidrs, node-addresses and ipam-addresses and writes local-node. It owns nothing in the kernel. The row
// is there from the start and says what is missing; the table is initialized when the row has been Ready once, because
// whoever prunes by it (routes, devices) must not take an address that is not known yet for one that is not wanted.
package localnode

// Package localnodecontroller describes this node in one row: its pod ranges, its router addresses (the gateways of the pods of this node) and its own addresses.
//
// Tables in: node-cidrs, node-addresses, ipam-addresses. Table out: local-node. The cell owns nothing in the kernel. The row exists from the start and contains
// the missing inputs. The table is complete once the row was Ready, because consumers that prune by it (routes, devices) must not delete state for addresses
// that are not known yet.
package localnodecontroller

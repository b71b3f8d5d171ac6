// Package ipamallocator allocates addresses to pods and records their owners. Method Next (next.go) allocates a free address of each family, and method Specific
// (specific.go) a given address.
//
// Tables in: node-cidrs (the range of each family), node-addresses (addresses of the node inside a range, and the router address that waggle_host still has),
// conntrack (passes that end the quarantine of addresses), and with an API server k8s-nodes, cilium-nodes and sources (addresses that a previous run
// announced). Tables out: ipam-usage, ipam-addresses (every address that is not free). The rows are authoritative; the bitmaps only find free addresses
// quickly.
//
// It owns nothing in the kernel. After a restart the endpoint files restore their addresses ([ipamallocator.Allocator] Restore), and the file ipam/routers.json in the
// state directory restores the router addresses. No address is allocated before both are held. The files in ipam/addresses restore unclaimed allocations and
// addresses in quarantine.
package ipamallocator

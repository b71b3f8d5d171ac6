// Package ipam gives pods their addresses and remembers who has which.
//
// It reads node-cidrs (the range of each family) and node-addresses (addresses of the node that lie inside a range, and
// the router address that waggle_host still carries). It writes ipam-addresses, which holds every address that is not
// free: what stands there is the truth, and the bitmaps beside it only find free addresses quickly.
//
// It owns nothing in the kernel. After a restart the endpoint files bring their addresses back ([ipam.Allocator]
// Restore), the file ipam/routers in the state directory the router addresses; nobody is given an address before both
// are held. The files in ipam/addresses bring back what was handed out and not claimed, and what rests.
package ipam

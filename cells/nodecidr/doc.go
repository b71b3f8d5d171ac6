// Package nodecidr decides which CIDRs this node's pods get their addresses from.
//
// It reads k8s-nodes and cilium-nodes (the rows of this node), sources (whether the one that counts may be used yet),
// node-addresses and flags, and writes node-cidrs: every CIDR that was offered, and why it won or lost. With an API server
// a CIDR is required, and comes from the Node or, with --ipam=cluster-pool, from the CiliumNode. What the agent itself
// wrote into either is no offer. The cell owns nothing in the kernel and keeps no state over restarts; what was chosen in
// this run is kept when nothing offers a range any more.
package nodecidr

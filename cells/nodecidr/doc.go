// Package nodecidr decides which CIDRs this node's pods get their addresses from.
//
// It reads k8s-nodes (the row of this node), sources (whether that table may be used yet), node-addresses and flags, and
// writes node-cidrs: every CIDR that was offered, and why it won or lost. It owns nothing in the kernel and keeps no
// state over restarts; what was chosen in this run is kept when nothing offers a range any more.
package nodecidr

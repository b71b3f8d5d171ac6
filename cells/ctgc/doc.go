// Package ctgc takes out of the maps of flows what is over: flows whose time has run out, and those of endpoints that are
// gone. The programs put flows in and prolong them; they never wait for this cell.
//
// It reads endpoints (whose flows may stay), ipam-addresses (which addresses wait for a pass) and the ring buffer
// ct_signals, in which programs say that a map is full or an endpoint has used up its share. It writes the table conntrack, a
// row for each map.
//
// In the kernel it deletes from ct_est4, ct_est6, ct_new4 and ct_new6, which nobody else does but the programs, and corrects
// ct_flows, by which they count each endpoint's share. After a restart the first pass finds whatever ended meanwhile.
package ctgc

// Package ctgc takes out of the maps of flows what is over: flows whose time has run out, those of endpoints that are gone, and
// translated ones whose service or backend is. The programs put flows in and prolong them; they never wait for this cell.
//
// It reads endpoints (whose flows may stay), ipam-addresses (which addresses wait for a pass), services, frontends and backends (whose
// translated flows may stay), node-addresses and device-addresses (under which addresses they may leave), unmasqueraded (towards which
// prefixes pods keep theirs) and the ring buffer ct_signals, in which programs say that a map is full or an endpoint has used up its share. It writes the tables conntrack, a row for each map, and nat-usage, a row for each endpoint with translated flows.
// From nodes it learns whose pods the peers of flows are, and writes node-traffic, a row for each node with flows: when its pods have answered.
//
// In the kernel it deletes from ct_est4, ct_est6, ct_new4, ct_new6, ct_burst4, ct_burst6, nat4, nat6 and affinity, as the
// programs do, and corrects ct_flows, nat_flows and nat_totals, by which they count each endpoint's share. After a restart the first pass finds whatever
// ended meanwhile.
package ctgc

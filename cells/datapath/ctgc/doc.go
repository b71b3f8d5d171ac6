// Package ctgc deletes flows from the maps of flows: expired flows, flows of removed endpoints, and translated flows whose service or backend was removed. The
// programs create flows and renew them; they never wait for this cell.
//
// Tables in: endpoints (whose flows may stay), ipam-addresses (which addresses wait for a pass), services, frontends and backends (whose translated flows may
// stay), ipcache (pods and nodes that exist), node-addresses and device-addresses (the source addresses that translated flows may have), unmasqueraded (the
// prefixes towards which pods keep their addresses), nodes (the node of a peer). Tables out: conntrack (a row for each map), nat-usage (a row for each endpoint
// with translated flows), node-traffic (a row for each node with flows, with the latest known time of a packet from its pods). It also reads the ring buffer
// ct_signals, in which programs report that a map is full or an endpoint has used up its quota.
//
// In the kernel it deletes from ct_est4, ct_est6, ct_new4, ct_new6, ct_burst4, ct_burst6, nat4, nat6 and affinity, as the programs do, and corrects ct_flows,
// nat_flows and nat_totals, in which programs count the quotas. After a restart the first pass finds all flows that ended in the meantime.
//
// All jobs and commands use one [access] with the inputs, the kernel, the status, and shared state with locks. The state of the loop is in [collector], the
// state of one pass in [pass]. Inputs are read as snapshots (locals.go, served.go, and the parts of nat.go, stranded.go and exclusions.go that read tables), a pass
// evaluates flows against them and deletes dead ones, and status.go writes the results.
package ctgc

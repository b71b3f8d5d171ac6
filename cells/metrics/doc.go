// Package metrics serves Prometheus metrics.
//
// What the agent is made of (hive, jobs, statedb, reconcilers) is counted as it happens; everything else is read at
// scrape time from tables (health, endpoint-states, nodes, ipam-addresses, bpf-maps) and from the datapath's counters, so a
// figure and the table that the operator reads never disagree. The cell writes no table and owns nothing in the kernel.
// After a restart all counters but the datapath's begin at 0.
//
// Without --prometheus-serve-addr, which is the default, nothing is counted and nothing listens.
package metrics

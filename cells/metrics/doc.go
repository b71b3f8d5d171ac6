// Package metrics serves Prometheus metrics.
//
// The work of hive, jobs, statedb and reconcilers, changes of nodes, and probes of nodes are counted as they happen. All other values are read at
// scrape time from tables and from the counters of the datapath and the nftables rules, so that a metric always agrees with its table. The cell
// writes no table and owns nothing in the kernel. After a restart all counters outside of the kernel begin at 0.
//
// Without --prometheus-serve-addr, which is the default, the cell counts nothing and does not listen.
package metrics

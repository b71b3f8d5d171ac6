// Package metrics serves Prometheus metrics.
//
// The work of hive, jobs, statedb and reconcilers, changes of nodes, and probes of nodes are counted as they happen. All other values are read at scrape time
// from tables and from the counters of the datapath and the nftables rules, so that a metric always agrees with its table. Tables in: backends, bpf-maps,
// collected-endpoints, configs, conntrack, drift-repairs, endpoint-states, flows, frontends, health, ipam-addresses, ipam-usage, nat-usage,
// neighbor-limits, node-health, node-paths, node-views, nodes, path-tests, policies, policy-entries, policy-progress, refused-claims, service-map-usage,
// services, and the sizes of the others. Tables out: none. The cell owns nothing in the kernel. After a restart all counters outside of the kernel begin at 0.
//
// Without --prometheus-serve-addr, which is the default, the cell counts nothing and does not listen.
package metrics

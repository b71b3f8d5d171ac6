package metrics

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// Definition describes one metric, also for the generated reference.
type Definition struct {
	Name   string
	Kind   string // "counter", "gauge", "histogram" or "summary"
	Help   string
	Labels []string
}

const (
	counter = "counter"
	gauge   = "gauge"
	summary = "summary" // sum and count, no quantiles

	histogram = "histogram"
)

// All metrics. Labels have few and fixed values.
var (
	hivePopulate = Definition{"waggle_hive_populate_duration_seconds", gauge, "Time to build all objects.", nil}
	hiveStart    = Definition{"waggle_hive_start_duration_seconds", gauge, "Time to run all start hooks.", nil}
	hiveStatus   = Definition{"waggle_hive_status", gauge, "Components by level of their last health report.", []string{"level"}}

	configChanged = Definition{"waggle_config_changed_options", gauge,
		"Options that have another value after a restart of the agent, because files in --config-dir have changed since its start.", nil}
	configFaulty = Definition{"waggle_config_dir_faulty", gauge,
		"1 while --config-dir cannot be read or the agent would not start again with its files, else 0.", nil}

	jobErrors   = Definition{"waggle_job_errors_total", counter, "Runs of jobs that ended in an error.", []string{"job"}}
	jobDuration = Definition{"waggle_job_run_duration_seconds", summary, "Duration of runs of jobs.", []string{"job", "kind"}}

	tableObjects   = Definition{"waggle_statedb_table_objects", gauge, "Rows.", []string{"table"}}
	tableRevision  = Definition{"waggle_statedb_table_revision", gauge, "Revision of the newest row.", []string{"table"}}
	tableGraveyard = Definition{"waggle_statedb_table_graveyard_objects", gauge,
		"Deleted rows that a reader has not seen yet.", []string{"table"}}
	tableContention = Definition{"waggle_statedb_table_contention_seconds_total", counter,
		"Time writers waited for the lock of a table.", []string{"table"}}
	txnDuration = Definition{"waggle_statedb_write_txn_duration_seconds", summary,
		"Time write transactions were open.", []string{"handle"}}

	reconcilerDuration = Definition{"waggle_reconciler_duration_seconds", summary,
		"Duration of operations on the kernel.", []string{"module", "name", "operation"}}
	reconcilerErrors = Definition{"waggle_reconciler_errors_total", counter,
		"Operations on the kernel that failed.", []string{"module", "name"}}
	reconcilerFailing = Definition{"waggle_reconciler_failing_objects", gauge,
		"Rows whose last operation failed and is being retried.", []string{"module", "name"}}
	pruneDuration = Definition{"waggle_reconciler_prune_duration_seconds", summary,
		"Duration of comparisons of the agent's objects in the kernel with the desired ones.", []string{"module", "name"}}
	pruneErrors = Definition{"waggle_reconciler_prune_errors_total", counter,
		"Prunings that failed.", []string{"module", "name"}}

	endpointsByState = Definition{"waggle_endpoint_state", gauge, "Endpoints by state.", []string{"state"}}
	ipamAddresses    = Definition{"waggle_ipam_addresses", gauge,
		"Pod addresses that are not free.", []string{"family", "state"}}
	ipamCapacity = Definition{"waggle_ipam_capacity", gauge,
		"Addresses of the pod CIDR, without the network and broadcast addresses.", []string{"family"}}
	ipamEvents = Definition{"waggle_ipam_events_total", counter,
		"Events of pod addresses: allocate, release, expire (not claimed in time), reuse-early (quarantine cut short).",
		[]string{"family", "action"}}

	endpointsCollected = Definition{"waggle_endpoints_collected_total", counter,
		"Endpoints that were removed because their pods ended without a DEL, by the evidence.", []string{"proofs"}}
	policyObjects = Definition{"waggle_policy_objects", gauge, "Policies that this node knows.", []string{"mode"}}
	policyEntries = Definition{"waggle_policy_entries", gauge, "Entries of all policies in a map.", []string{"map"}}
	policyStuck   = Definition{"waggle_policy_not_written", gauge,
		"Compiled policies that are not written completely, because the kernel rejects entries or a map is full.", nil}
	policyNotEnforced = Definition{"waggle_policy_not_enforced", gauge,
		"Parts of policies that are not enforced as specified: they allow nothing, or deny more.", []string{"reason"}}
	policyFlows = Definition{"waggle_policy_recent_flows", gauge, "Connections in the table flows by policy verdict; audited ones would be " +
		"denied if policies in audit mode were enforced.", []string{"verdict"}}
	policyRevision = Definition{"waggle_policy_revision", gauge, "Revision of the policies that are enforced on this node.", nil}

	driftRepaired = Definition{"waggle_drift_repaired_total", counter,
		"Repaired objects of the agent that another writer had changed or removed.", []string{"kind"}}

	nodesAll    = Definition{"cilium_nodes_all_num", gauge, "Nodes of the cluster that this node knows, itself included.", nil}
	nodesEvents = Definition{"cilium_nodes_all_events_received_total", counter,
		"Changes of nodes (add, update, delete), by kind of the object that describes the node.", []string{"event_type", "source"}}
	nodesRefused = Definition{"waggle_nodes_refused_claims", gauge, "Addresses and pod ranges of nodes that belong to another node.", nil}

	neighborEntries = Definition{"waggle_neighbor_entries", gauge,
		"Entries of the kernel's neighbour tables: kernel (of all network namespaces) and expected (other nodes on links of this node, and its pods).", []string{"family", "kind"}}
	neighborLimit = Definition{"waggle_neighbor_limit", gauge,
		"Entries of a neighbour table beyond which the kernel removes idle ones early (soft) or rejects new ones (hard).", []string{"family", "limit"}}
	neighborOverflows = Definition{"waggle_neighbor_overflows_total", counter, "New neighbours that the kernel has rejected since it booted.", []string{"family"}}

	healthStatus = Definition{"cilium_node_health_connectivity_status", gauge,
		"Nodes by result of the probes of their addresses (type node) and of their health addresses (type endpoint): reachable, unreachable or unknown.",
		[]string{"type", "status"}}
	healthLatency = Definition{"cilium_node_health_connectivity_latency_seconds", histogram,
		"Time until the responses to probes of nodes; a failed probe counts as 60 s.", []string{"type", "protocol", "address_type"}}
	unreachableNodes     = Definition{"cilium_unreachable_nodes", gauge, "Nodes with an address that does not respond to probes.", nil}
	unreachableEndpoints = Definition{"cilium_unreachable_health_endpoints", gauge, "Nodes with a health address that does not respond to probes.", nil}
	viewsDiffer          = Definition{"waggle_node_views_differing", gauge, "Nodes whose agents' list of cluster nodes has differed from this agent's for more than a minute; see the table node-views.", nil}
	pathTests            = Definition{"waggle_path_tests", gauge, "Tests of the paths to other nodes by test and result; all but the test direct use the tunnel if there is one.", []string{"test", "result"}}
	pathFaults           = Definition{"waggle_path_faults", gauge, "Paths to other nodes by fault: dead, blocked, one-way, size, checksum, aggregates or not-direct " +
		"(healed ones are not counted); see the table path-tests.", []string{"fault"}}
	nodePaths = Definition{"waggle_node_paths", gauge, "Other nodes by path of packets to their pods with --routing-mode=hybrid: direct or tunnel.", []string{"mode"}}

	claimsRefused = Definition{"waggle_ipcache_refused_claims", gauge,
		"Rejected addresses that objects of other nodes claim for pods; see the table refused-claims.", []string{"reason"}}

	flowEntries = Definition{"waggle_conntrack_flows", gauge,
		"Entries in a map after the last pass of the collector: flows (ct_...), directions of translated flows (nat4, nat6), clients with session affinity (affinity).", []string{"map"}}
	flowDeleted = Definition{"waggle_conntrack_deleted_total", counter,
		"Entries that the collector deleted: expired, orphaned (their endpoint was removed), unserved (their service or its backend was removed) or flushed (by an operator).", []string{"map", "reason"}}
	flowSignals = Definition{"waggle_conntrack_signals_total", counter,
		"Signals of programs that could not create a flow: full (the map is full, or no port is left) or share (the endpoint's quota).", []string{"map", "reason"}}
	natShareUsed = Definition{"waggle_nat_endpoint_share_used_percent", gauge,
		"Used part of an endpoint's quota (share) of translated flows at the last pass of the collector; endpoints without such flows are left out.", []string{"endpoint", "pod"}}
	natShareRefused = Definition{"waggle_nat_endpoint_refused_total", counter,
		"Signals of programs that could not create a translated flow for an endpoint: quota (share) used up, map full, or no port left.", []string{"endpoint", "pod"}}
	guardPackets = Definition{"waggle_guard_packets_total", counter,
		"Packets that nftables rules dropped: unmarked (from a pod link without the programs' mark), node-source (from outside, with this node's or its pods' address).",
		[]string{"reason"}}

	serviceCount    = Definition{"waggle_services", gauge, "Services that this node balances, by type; a host port of a pod counts as one.", []string{"type"}}
	serviceProblems = Definition{"waggle_service_problems", gauge,
		"Services of which a part is not in force; see the column Problems of the table services.", nil}
	serviceFrontends = Definition{"waggle_service_frontends", gauge, "Frontends (addresses and ports) of services, by type.", []string{"type"}}
	serviceFailed    = Definition{"waggle_service_frontends_failed", gauge,
		"Frontends whose map entries are out of date, because a map is full or the kernel rejects a write; see the table frontends.", nil}
	serviceRefused = Definition{"waggle_service_claims_refused", gauge,
		"Addresses and ports that a service claims and another service owns; see the column Refused of the table frontends.", nil}
	serviceBackends   = Definition{"waggle_service_backends", gauge, "Backends of services, by state.", []string{"state"}}
	serviceMapEntries = Definition{"waggle_service_map_entries", gauge,
		"Entries in use of a map of services; waggle_bpf_map_max_entries is the capacity.", []string{"map"}}
	serviceMapRefused = Definition{"waggle_service_map_refused_total", counter,
		"Writes for which a map of services or the quota of a namespace had no space; each retry counts.", []string{"map"}}

	mapMaxEntries = Definition{"waggle_bpf_map_max_entries", gauge, "Capacity (bytes for a ring buffer).", []string{"map"}}
	mapMemory     = Definition{"waggle_bpf_map_memory_bytes", gauge, "Memory that the kernel charges.", []string{"map"}}
	packets       = Definition{"waggle_datapath_packets_total", counter,
		"Packets by verdict; the reason of forwarded ones is Success. Socket calls of processes that are rejected count as packets.", []string{"reason", "direction"}}
	packetBytes = Definition{"waggle_datapath_bytes_total", counter,
		"Bytes by verdict; the reason of forwarded ones is Success.", []string{"reason", "direction"}}
	vniDiffers = Definition{"waggle_tunnel_identity_differs_total", counter,
		"Packets from the tunnel whose VNI differs from their sender's identity in ipcache, which applies; many mean that nodes learn of pods late.", nil}
	scrapeErrors = Definition{"waggle_metrics_read_errors_total", counter,
		"Scrapes at which the datapath's counters could not be read.", nil}
)

// Definitions returns all metrics of the agent, sorted by name.
func Definitions() []Definition {
	all := []Definition{hivePopulate, hiveStart, hiveStatus, configChanged, configFaulty, jobErrors, jobDuration, tableObjects, tableRevision, tableGraveyard,
		tableContention, txnDuration, reconcilerDuration, reconcilerErrors, reconcilerFailing, pruneDuration, pruneErrors,
		endpointsByState, endpointsCollected, ipamAddresses, ipamCapacity, ipamEvents, policyObjects, policyEntries,
		policyStuck, policyNotEnforced, policyFlows, policyRevision, driftRepaired, claimsRefused, nodesAll, nodesEvents, nodesRefused, neighborEntries, neighborLimit, neighborOverflows, healthStatus, healthLatency, unreachableNodes, unreachableEndpoints, viewsDiffer, pathTests, pathFaults, nodePaths, flowEntries, flowDeleted, flowSignals, natShareUsed, natShareRefused, guardPackets,
		serviceCount, serviceProblems, serviceFrontends, serviceFailed, serviceRefused, serviceBackends, serviceMapEntries, serviceMapRefused,
		mapMaxEntries, mapMemory, packets, packetBytes, vniDiffers, scrapeErrors}
	slices.SortFunc(all, func(a, b Definition) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	return all
}

func (d Definition) desc() *prometheus.Desc { return prometheus.NewDesc(d.Name, d.Help, d.Labels, nil) }

// registry creates and registers metrics from definitions. A duplicate registration is a programming error and panics.
type registry struct{ *prometheus.Registry }

func newRegistry() *registry {
	r := &registry{prometheus.NewPedanticRegistry()}
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

func (r *registry) counters(d Definition) *prometheus.CounterVec {
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: d.Name, Help: d.Help}, d.Labels)
	r.MustRegister(v)
	return v
}

func (r *registry) gauges(d Definition) *prometheus.GaugeVec {
	v := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: d.Name, Help: d.Help}, d.Labels)
	r.MustRegister(v)
	return v
}

func (r *registry) histograms(d Definition, buckets []float64) *prometheus.HistogramVec {
	v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: d.Name, Help: d.Help, Buckets: buckets}, d.Labels)
	r.MustRegister(v)
	return v
}

func (r *registry) summaries(d Definition) *prometheus.SummaryVec {
	v := prometheus.NewSummaryVec(prometheus.SummaryOpts{Name: d.Name, Help: d.Help}, d.Labels)
	r.MustRegister(v)
	return v
}

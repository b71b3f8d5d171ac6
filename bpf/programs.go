package bpf

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
)

// Names of the programs; object and function have the same.
const (
	PodEgress  = "pod_egress"  // ingress of a pod's host end: what the pod sends
	PodIngress = "pod_ingress" // egress of a pod's host end: what the node sends to the pod
	HostEgress = "host_egress" // egress of waggle_host: what the node's routes lead to pods

	NetdevIngress = "netdev_ingress" // ingress of devices that lead out: what comes from the network
	NetdevEgress  = "netdev_egress"  // their egress: what leaves the node
)

// Names of the maps.
const (
	MapEndpointFacts   = "endpoint_facts"
	MapLinks           = "bpf_links"
	MapEndpoints       = "bpf_endpoints"
	MapIpcache         = "ipcache"
	MapIpcachePrefixes = "ipcache_prefixes"
	MapMetrics         = "metrics"
	MapEvents          = "events"
	MapEventsLost      = "events_lost"
	MapDropTokens      = "drop_tokens"
	MapVerdictTokens   = "verdict_tokens"
	MapDatapath        = "datapath"
	MapPolicy          = "policy"
	MapPolicyRanges    = "policy_ranges"
	MapCIDRs           = "cidrs"
	MapEpochs          = "epochs"
	MapCtEst4          = "ct_est4"
	MapCtEst6          = "ct_est6"
	MapCtNew4          = "ct_new4"
	MapCtNew6          = "ct_new6"
	MapCtFlows         = "ct_flows"
	MapCtSignals       = "ct_signals"
	MapFrags           = "frags"
	MapServices        = "services"
	MapServiceSlots    = "service_slots"
	MapBackends        = "backends"
	MapMaglev          = "maglev"
	MapAffinity        = "affinity"
	MapAffinityMembers = "affinity_members"
	MapSourceRanges    = "source_ranges"
	MapNat4            = "nat4"
	MapNat6            = "nat6"
	MapNetdevs         = "netdevs"
	MapUnmasqueraded   = "unmasqueraded"
)

// Load-time constants, set through the Variables of each spec that has them: the identities of what no ipcache entry
// covers. Both begin as "world" (2), which is right for one family; with two, Cilium's numbers are 9 and 10.
const (
	VariableWorldIPv4 = "world_ipv4"
	VariableWorldIPv6 = "world_ipv6"
)

// Load-time constants of conntrack and policy.
const (
	// Timeouts of flows in ticks, see [CtTicks]; they begin as Cilium's.
	VariableCtTCPTimeout      = "ct_tcp_timeout"       // TCP connections that stand: 8000 s
	VariableCtTCPSynTimeout   = "ct_tcp_syn_timeout"   // that do not stand yet: 60 s
	VariableCtTCPCloseTimeout = "ct_tcp_close_timeout" // that were reset, or closed by both sides: 10 s
	VariableCtAnyTimeout      = "ct_any_timeout"       // everything else: 60 s
	// VariableCtShare is how many established flows one endpoint may have; it begins as a quarter of ct_est4.
	VariableCtShare = "ct_share"
	// VariablePolicyCIDRNodes is 1 when entries of [PolicyCIDROutside] count for nodes too; it begins as 0.
	VariablePolicyCIDRNodes = "policy_cidr_nodes"
	// VariableVerdictEvents is 0 when judged flows are not to be reported; it begins as 1.
	VariableVerdictEvents = "verdict_events"
)

var errUnknownProgram = errors.New("no such program")

// Programs lists the names of all programs.
func Programs() []string {
	return []string{PodEgress, PodIngress, HostEgress, NetdevIngress, NetdevEgress}
}

// Load reads the object of one program. Each call returns a spec of its own, which the caller may change.
func Load(program string) (*ebpf.CollectionSpec, error) {
	switch program {
	case PodEgress:
		return loadPodEgress()
	case PodIngress:
		return loadPodIngress()
	case HostEgress:
		return loadHostEgress()
	case NetdevIngress:
		return loadNetdevIngress()
	case NetdevEgress:
		return loadNetdevEgress()
	}
	return nil, fmt.Errorf("load program %s: %w", program, errUnknownProgram)
}

// MapSpecs collects the maps that all programs share by name, those of other generations included. Data sections belong
// to a single program, and what [ofGeneration] names to a single load. A map that two objects declare differently is an error.
func MapSpecs() (map[string]*ebpf.MapSpec, error) {
	all := map[string]*ebpf.MapSpec{}
	for _, program := range Programs() {
		spec, err := Load(program)
		if err != nil {
			return nil, err
		}
		for _, name := range slices.Sorted(maps.Keys(spec.Maps)) {
			if strings.HasPrefix(name, ".") || ofGeneration(name, spec.Maps[name]) {
				continue
			}
			if have, ok := all[name]; ok && !sameLayout(have, spec.Maps[name]) {
				return nil, fmt.Errorf("collect map %s: program %s declares it differently", name, program)
			}
			all[name] = spec.Maps[name]
		}
	}
	return all, nil
}

// ofGeneration tells whether a map must never be shared between generations: a tail call would enter a program of another
// one, and scratch space may be laid out differently. Nobody pins such a map; each load makes its own. What is per CPU and
// no counter is taken for scratch space.
func ofGeneration(name string, m *ebpf.MapSpec) bool {
	switch m.Type {
	case ebpf.ProgramArray, ebpf.ArrayOfMaps, ebpf.HashOfMaps:
		return true
	case ebpf.PerCPUArray, ebpf.PerCPUHash, ebpf.LRUCPUHash:
		return name != MapMetrics && name != MapEventsLost
	}
	return false
}

func sameLayout(a, b *ebpf.MapSpec) bool {
	shape := func(m *ebpf.MapSpec) []any {
		return []any{m.Type, m.KeySize, m.ValueSize, m.MaxEntries, m.Flags}
	}
	return reflect.DeepEqual(shape(a), shape(b))
}

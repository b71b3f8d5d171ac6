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
)

// Load-time constants, set through the Variables of each spec that has them: the identities of what no ipcache entry
// covers. Both begin as "world" (2), which is right for one family; with two, Cilium's numbers are 9 and 10.
const (
	VariableWorldIPv4 = "world_ipv4"
	VariableWorldIPv6 = "world_ipv6"
)

var errUnknownProgram = errors.New("no such program")

// Programs lists the names of all programs.
func Programs() []string { return []string{PodEgress, PodIngress, HostEgress} }

// Load reads the object of one program. Each call returns a spec of its own, which the caller may change.
func Load(program string) (*ebpf.CollectionSpec, error) {
	switch program {
	case PodEgress:
		return loadPodEgress()
	case PodIngress:
		return loadPodIngress()
	case HostEgress:
		return loadHostEgress()
	}
	return nil, fmt.Errorf("load program %s: %w", program, errUnknownProgram)
}

// MapSpecs collects the maps of all programs by name, without the data sections that belong to a single program. A map
// that two objects declare differently is an error.
func MapSpecs() (map[string]*ebpf.MapSpec, error) {
	all := map[string]*ebpf.MapSpec{}
	for _, program := range Programs() {
		spec, err := Load(program)
		if err != nil {
			return nil, err
		}
		for _, name := range slices.Sorted(maps.Keys(spec.Maps)) {
			if strings.HasPrefix(name, ".") {
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

func sameLayout(a, b *ebpf.MapSpec) bool {
	shape := func(m *ebpf.MapSpec) []any {
		return []any{m.Type, m.KeySize, m.ValueSize, m.MaxEntries, m.Flags}
	}
	return reflect.DeepEqual(shape(a), shape(b))
}

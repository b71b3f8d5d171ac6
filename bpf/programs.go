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

// Names of the programs of packets; object and function have the same.
const (
	PodEgress  = "pod_egress"  // ingress of a pod's host end: what the pod sends
	PodIngress = "pod_ingress" // egress of a pod's host end: what the node sends to the pod
	HostEgress = "host_egress" // egress of waggle_host: what the node's routes lead to pods

	NetdevIngress = "netdev_ingress" // ingress of devices that lead out: what comes from the network
	NetdevEgress  = "netdev_egress"  // their egress: what leaves the node

	OverlayIngress = "overlay_ingress" // ingress of waggle_vxlan: what other nodes send through the tunnel
)

// Names of [NetdevIngress] and [NetdevEgress] for devices without a link header: IP tunnels, WireGuard, PPP. The objects are the same, with
// [VariableLinkHeader] 0.
const (
	L3DevIngress = "l3dev_ingress"
	L3DevEgress  = "l3dev_egress"
)

// Names of the steps of [PodEgress]: programs of its object with which it continues in a tail call, through [MapPodSteps].
const (
	PodNeighbor = "pod_neighbor" // ARP and neighbor solicitations
	PodError    = "pod_error"    // ICMP errors
	PodService  = "pod_service"  // the first packet of a flow to a service
	PodRefuse   = "pod_refuse"   // the answer to a packet that was dropped
	PodToNode   = "pod_to_node"  // a packet for a pod of another node
	PodSlow     = "pod_slow"     // every packet that the fast path leaves
)

// MapPodSteps holds the steps of [PodEgress]. It belongs to one load of the object, and the kernel empties it when no process has it open and no pin
// holds it.
const MapPodSteps = "pod_steps"

// Sock is the object of all programs of sockets.
const Sock = "sock"

// SockList is the object of the iterators [SockListTCP] and [SockListUDP]: they list the sockets of one network namespace that the programs of
// sockets have connected to backends, each as a [SockListed]. They are not attached; a reader of the list loads them.
const (
	SockList    = "sock_list"
	SockListTCP = "sock_list_tcp"
	SockListUDP = "sock_list_udp"
)

// Names of the programs of sockets, "sock_" and the hook of a cgroup.
const (
	SockConnect4     = "sock_connect4"     // connect: a service becomes a backend
	SockConnect6     = "sock_connect6"     // the same of IPv6 sockets, also for mapped IPv4 addresses
	SockSendmsg4     = "sock_sendmsg4"     // sendto and sendmsg of UDP sockets: the same
	SockSendmsg6     = "sock_sendmsg6"     // ...
	SockRecvmsg4     = "sock_recvmsg4"     // recvfrom and recvmsg of UDP sockets: the backend becomes the service again
	SockRecvmsg6     = "sock_recvmsg6"     // ...
	SockGetpeername4 = "sock_getpeername4" // getpeername: the same
	SockGetpeername6 = "sock_getpeername6" // ...
	SockBind4        = "sock_bind4"        // bind: ports of services are taken
	SockBind6        = "sock_bind6"        // ...
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
	MapEpochShards     = "epoch_shards"
	MapCtEst4          = "ct_est4"
	MapCtEst6          = "ct_est6"
	MapCtNew4          = "ct_new4"
	MapCtNew6          = "ct_new6"
	MapCtBurst4        = "ct_burst4"
	MapCtBurst6        = "ct_burst6"
	MapCtRates         = "ct_rates"
	MapRejectRates     = "reject_rates"
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
	MapNatFlows        = "nat_flows"
	MapNatTotals       = "nat_totals"
	MapSockConnected   = "sock_connected"
	MapSockSent        = "sock_sent"
	MapNetdevs         = "netdevs"
	MapUnmasqueraded   = "unmasqueraded"
	MapOverlay         = "overlay"
	MapNodes           = "nodes"
	MapNodeAddrs       = "node_addrs"
	MapEncap           = "encap"
	MapKnownIdentities = "known_identities"
	MapIdentityClasses = "identity_classes"
)

// Load-time constants, set through the Variables of each spec that has them: the identities of what no ipcache entry
// covers. Both begin as "world" (2), which is right for one family; with two, Cilium's numbers are 9 and 10.
const (
	VariableWorldIPv4 = "world_ipv4"
	VariableWorldIPv6 = "world_ipv6"
)

// VariableTunnelPort is the UDP port of the tunnel between nodes. It begins as 0: pods of different nodes meet by routes.
const VariableTunnelPort = "tunnel_port"

// VariableDirectAccepted is one of the values below: which other nodes may send to pods without the tunnel as well. It begins as 0: none may.
const VariableDirectAccepted = "direct_accepted"

// Values of [VariableDirectAccepted].
const (
	AcceptsAll    = 1
	AcceptsRouted = 2 // those whose slot has [NodeRouted]
)

// VariableDirectBesideTunnel is 1 when there is a tunnel, and programs forward what pods exchange with those of nodes that are reached past it. It begins
// as 0: the stack does.
const VariableDirectBesideTunnel = "direct_beside_tunnel"

// VariableEncapModes is which frames of the tunnel programs make and take by themselves: the sum of some of the modes below. It begins as 0: the tunnel
// device makes and takes all.
const (
	VariableEncapModes = "encap_modes"

	EncapSendsIPv4    = 1 // frames to other nodes with IPv4 inside
	EncapReceivesIPv4 = 2 // frames from them with IPv4 inside
	EncapReceivesIPv6 = 4 // with IPv6 inside
	EncapSendsIPv6    = 8 // frames to other nodes with IPv6 inside
	EncapSends        = EncapSendsIPv4 | EncapSendsIPv6
)

// VariableEncapPortFirst and VariableEncapPortLast are the range of source ports of what programs send into the tunnel; they begin as 32768 and 60999.
const (
	VariableEncapPortFirst = "encap_port_first"
	VariableEncapPortLast  = "encap_port_last"
)

// VariableLinkHeader is how many bytes of a packet come before its IP header. It begins as 14, those of Ethernet.
const VariableLinkHeader = "link_header"

// Load-time constants of services: the addresses from which a pod meets itself as the backend of a service, as [IPv4Word] and
// [IPv6Bytes] make them.
const (
	VariableServiceLoopbackIPv4 = "service_loopback_ipv4" // begins as 169.254.42.1
	VariableServiceLoopbackIPv6 = "service_loopback_ipv6" // begins as 100::a9fe:2a01
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
	// VariableCtNewRate is how many new flows of one endpoint have a place in ct_new4 and ct_new6 in each tick; it begins as 1/16 of ct_new4.
	VariableCtNewRate = "ct_new_rate"
	// VariableRejectRate is how many resets and ICMP errors are sent in each tick for one endpoint, or for all senders outside; it is 1024. Only tests
	// of the programs have fewer.
	VariableRejectRate = "reject_rate"
	// VariableFastPath is 0 when every packet of a pod takes the slow path; it is 1. Only tests of the programs turn it off.
	VariableFastPath = "fast_path"
	// VariableCtGuarantee is how many established flows each endpoint can always have; it begins as 1/1024 of ct_est4.
	VariableCtGuarantee = "ct_guarantee"
	// VariableCtBeyond is how many established flows all endpoints together may have beyond their guarantees; it begins as three quarters of
	// ct_est4.
	VariableCtBeyond = "ct_beyond"
	// VariableNatShares are four numbers: how many translated IPv4 flows one endpoint may have, how many those of no endpoint may be
	// together, and the same for IPv6; they begin as a quarter and three quarters of the maps.
	VariableNatShares = "nat_shares"
	// VariableNatGuarantees are how many translated flows of each family each endpoint can always have, those of none together, and the node; IPv4
	// stands first. They begin as 1/2048 of the entries of the maps.
	VariableNatGuarantees = "nat_guarantees"
	// VariableNatBeyond are how many translated flows of each family all may have together beyond their guarantees; they begin as 11/16 of the flows
	// for which the maps have room.
	VariableNatBeyond = "nat_beyond"
	// VariablePolicyCIDRNodes is 1 when entries of [PolicyCIDROutside] count for nodes too; it begins as 0.
	VariablePolicyCIDRNodes = "policy_cidr_nodes"
	// VariableNatPortFirst and VariableNatPortLast are the range of ports under which flows leave with an address of the node;
	// they begin as 32768 and 65535.
	VariableNatPortFirst = "nat_port_first"
	VariableNatPortLast  = "nat_port_last"
	// VariableVerdictEvents is 0 when judged flows are not to be reported; it begins as 1.
	VariableVerdictEvents = "verdict_events"
)

// Load-time constants of the programs of sockets.
const (
	// VariableSockHostNetns is the cookie of the node's own network namespace, 64 bits. It begins as 0, which nobody has.
	VariableSockHostNetns = "sock_host_netns"
	// VariableSockHostOnly is 1 when sockets of pods are left alone; it begins as 0.
	VariableSockHostOnly = "sock_host_only"
	// VariableSockBindProtection is 0 when processes of the node may bind ports of services; it begins as 1.
	VariableSockBindProtection = "sock_bind_protection"
)

var errUnknownProgram = errors.New("no such program")

// Programs lists the names of all programs of packets.
func Programs() []string {
	return []string{PodEgress, PodIngress, HostEgress, NetdevIngress, NetdevEgress, L3DevIngress, L3DevEgress, OverlayIngress}
}

// IsStep reports whether a program is a step of another one, and belongs on no hook.
func IsStep(program string) bool {
	return slices.Contains([]string{PodNeighbor, PodError, PodService, PodRefuse, PodToNode, PodSlow}, program)
}

// SockPrograms lists the names of all programs of sockets.
func SockPrograms() []string {
	return []string{SockConnect4, SockConnect6, SockSendmsg4, SockSendmsg6, SockRecvmsg4, SockRecvmsg6,
		SockGetpeername4, SockGetpeername6, SockBind4, SockBind6}
}

// Objects lists the names of all objects.
func Objects() []string {
	return []string{PodEgress, PodIngress, HostEgress, NetdevIngress, NetdevEgress, OverlayIngress, Sock, SockList}
}

// Load reads the object with a name of [Objects], or the one of a program of [Programs] with its load-time constants. Each call returns a spec of its own, which the caller may change.
func Load(object string) (*ebpf.CollectionSpec, error) {
	switch object {
	case PodEgress:
		return loadPodEgress()
	case PodIngress:
		return loadPodIngress()
	case HostEgress:
		return loadHostEgress()
	case OverlayIngress:
		return loadOverlayIngress()
	case Sock:
		return loadSock()
	case SockList:
		return loadSockList()
	case NetdevIngress:
		return loadNetdevIngress()
	case NetdevEgress:
		return loadNetdevEgress()
	case L3DevIngress:
		return withoutLinkHeader(L3DevIngress, NetdevIngress)
	case L3DevEgress:
		return withoutLinkHeader(L3DevEgress, NetdevEgress)
	}
	return nil, fmt.Errorf("load program %s: %w", object, errUnknownProgram)
}

// withoutLinkHeader reads the object of another program for packets that begin with their IP header.
func withoutLinkHeader(name, object string) (*ebpf.CollectionSpec, error) {
	spec, err := Load(object)
	if err != nil {
		return nil, err
	}
	program := spec.Programs[object]
	program.Name = name
	delete(spec.Programs, object)
	spec.Programs[name] = program
	return spec, spec.Variables[VariableLinkHeader].Set(uint32(0))
}

// MapSpecs collects the maps that all programs share by name, those of other generations included. Data sections belong
// to a single program, and what [ofGeneration] names to a single load. A map that two objects declare differently is an error.
func MapSpecs() (map[string]*ebpf.MapSpec, error) {
	all := map[string]*ebpf.MapSpec{}
	for _, object := range Objects() {
		spec, err := Load(object)
		if err != nil {
			return nil, err
		}
		for _, name := range slices.Sorted(maps.Keys(spec.Maps)) {
			if strings.HasPrefix(name, ".") || ofGeneration(name, spec.Maps[name]) {
				continue
			}
			if have, ok := all[name]; ok && !sameLayout(have, spec.Maps[name]) {
				return nil, fmt.Errorf("collect map %s: program %s declares it differently", name, object)
			}
			all[name] = spec.Maps[name]
		}
	}
	return all, nil
}

// ofGeneration tells whether a map must never be shared between generations: a tail call would enter a program of another
// one, and scratch space may be laid out differently. Nobody pins such a map; each load makes its own. What is per CPU and
// no counter is taken for scratch space. The former maps of flows ([FormerName]) are given to a load by the agent.
func ofGeneration(name string, m *ebpf.MapSpec) bool {
	switch m.Type {
	case ebpf.ProgramArray, ebpf.ArrayOfMaps, ebpf.HashOfMaps:
		return true
	case ebpf.Hash:
		return strings.HasSuffix(name, formerSuffix)
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

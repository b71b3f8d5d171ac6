package bpf

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sync/errgroup"
)

// Names of the packet programs; object and function have the same name.
const (
	PodEgress  = "pod_egress"  // ingress of a pod's host end: packets of the pod
	PodIngress = "pod_ingress" // egress of a pod's host end: packets to the pod
	HostEgress = "host_egress" // egress of waggle_host: packets that the node's routes lead to pods

	NetdevIngress = "netdev_ingress" // ingress of devices towards the outside: packets from the network
	NetdevEgress  = "netdev_egress"  // egress of these devices: packets that leave the node

	OverlayIngress = "overlay_ingress" // ingress of waggle_vxlan: packets of other nodes in the tunnel
)

// Names of [NetdevIngress] and [NetdevEgress] for devices without a link header: IP tunnels, WireGuard, PPP. They use the same objects with
// [VariableLinkHeader] 0.
const (
	L3DevIngress = "l3dev_ingress"
	L3DevEgress  = "l3dev_egress"
)

// Names of the steps of [PodEgress]: programs of its object that it enters by a tail call, through [MapPodSteps].
const (
	PodNeighbor = "pod_neighbor" // ARP and neighbor solicitations
	PodError    = "pod_error"    // ICMP errors
	PodService  = "pod_service"  // the first packet of a flow to a service
	PodRefuse   = "pod_refuse"   // the rejection of a packet, by an ICMP error or a reset
	PodToNode   = "pod_to_node"  // a packet for a pod of another node
	PodSlow     = "pod_slow"     // every packet outside of the fast path
)

// MapPodSteps holds the steps of [PodEgress]. It belongs to one load of the object, and the kernel clears it when no process has it open and no pin refers to
// it.
const MapPodSteps = "pod_steps"

// Sock is the object of all socket programs.
const Sock = "sock"

// SockList is the object of the iterators [SockListTCP] and [SockListUDP]: they list the sockets of one network namespace that the socket programs have
// connected to backends, each as a [SockListed]. They are not attached; a reader of the list loads them.
const (
	SockList    = "sock_list"
	SockListTCP = "sock_list_tcp"
	SockListUDP = "sock_list_udp"
)

// Names of the socket programs, "sock_" and the hook of a cgroup.
const (
	SockConnect4     = "sock_connect4"     // connect: translates a service to a backend
	SockConnect6     = "sock_connect6"     // the same for IPv6 sockets, also for mapped IPv4 addresses
	SockSendmsg4     = "sock_sendmsg4"     // sendto and sendmsg of UDP sockets: the same
	SockSendmsg6     = "sock_sendmsg6"     // ...
	SockRecvmsg4     = "sock_recvmsg4"     // recvfrom and recvmsg of UDP sockets: translates the backend back to the service
	SockRecvmsg6     = "sock_recvmsg6"     // ...
	SockGetpeername4 = "sock_getpeername4" // getpeername: the same
	SockGetpeername6 = "sock_getpeername6" // ...
	SockBind4        = "sock_bind4"        // bind: rejects ports of services
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
	MapFragsBurst      = "frags_burst"
	MapFragRates       = "frag_rates"
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

// Load-time constants, set through the Variables of each spec that has them: the identities of addresses without an ipcache entry. Both default to "world"
// (2), which is right for one family; with two, Cilium's numbers are 9 and 10.
const (
	VariableWorldIPv4 = "world_ipv4"
	VariableWorldIPv6 = "world_ipv6"
)

// VariableTunnelPort is the UDP port of the tunnel between nodes. Default 0: pods of different nodes use routes.
const VariableTunnelPort = "tunnel_port"

// VariableDirectAccepted is one of the values below: which other nodes may also send to pods without the tunnel. Default 0: none.
const VariableDirectAccepted = "direct_accepted"

// Values of [VariableDirectAccepted].
const (
	AcceptsAll    = 1
	AcceptsRouted = 2 // nodes whose slot has [NodeRouted]
)

// VariableDirectBesideTunnel is 1 if there is a tunnel and programs forward packets between local pods and pods of nodes that are reached without it. Default
// 0: the stack forwards them.
const VariableDirectBesideTunnel = "direct_beside_tunnel"

// VariableEncapModes is the set of tunnel frames that programs encapsulate and decapsulate themselves: the sum of some of the modes below. Default 0: the
// tunnel device does all.
const (
	VariableEncapModes = "encap_modes"

	EncapSendsIPv4    = 1 // frames to other nodes with IPv4 inside
	EncapReceivesIPv4 = 2 // frames from them with IPv4 inside
	EncapReceivesIPv6 = 4 // with IPv6 inside
	EncapSendsIPv6    = 8 // frames to other nodes with IPv6 inside
	EncapSends        = EncapSendsIPv4 | EncapSendsIPv6
)

// VariableEncapPortFirst and VariableEncapPortLast are the range of source ports of tunnel frames that programs send. Defaults: 32768 and 60999.
const (
	VariableEncapPortFirst = "encap_port_first"
	VariableEncapPortLast  = "encap_port_last"
)

// VariableLinkHeader is the number of bytes of a packet before its IP header. Default 14, for Ethernet.
const VariableLinkHeader = "link_header"

// Load-time constants of services: the source addresses of a pod that is its own backend, in the format of [IPv4Word] and [IPv6Bytes].
const (
	VariableServiceLoopbackIPv4 = "service_loopback_ipv4" // default 169.254.42.1
	VariableServiceLoopbackIPv6 = "service_loopback_ipv6" // default 100::a9fe:2a01
)

// Load-time constants of conntrack and policy.
const (
	// Timeouts of flows in ticks, see [CtTicks]; the defaults are Cilium's.
	VariableCtTCPTimeout      = "ct_tcp_timeout"       // established TCP connections: 8000 s
	VariableCtTCPSynTimeout   = "ct_tcp_syn_timeout"   // TCP connections that are not established: 60 s
	VariableCtTCPCloseTimeout = "ct_tcp_close_timeout" // TCP connections that were reset, or closed by both sides: 10 s
	VariableCtAnyTimeout      = "ct_any_timeout"       // other protocols: 60 s
	// VariableCtShare is the maximum number of established flows of one endpoint. Default: a quarter of ct_est4.
	VariableCtShare = "ct_share"
	// VariableCtNewRate is the number of new flows of one endpoint in each tick that are stored in ct_new4 and ct_new6. Default: 1/16 of ct_new4.
	VariableCtNewRate = "ct_new_rate"
	// VariableRejectRate is the number of resets and ICMP errors in each tick for one endpoint, or for all outside senders. Default 1024. Only tests of the
	// programs use a lower rate.
	VariableRejectRate = "reject_rate"
	// VariableFastPath is 0 if every packet of a pod takes the slow path. Default 1. Only tests of the programs use 0.
	VariableFastPath = "fast_path"
	// VariableCtGuarantee is the guaranteed number of established flows of each endpoint. Default: 1/1024 of ct_est4.
	VariableCtGuarantee = "ct_guarantee"
	// VariableCtBeyond is the maximum number of established flows of all endpoints together beyond their guarantees. Default: three quarters of ct_est4.
	VariableCtBeyond = "ct_beyond"
	// VariableNatShares are four numbers: the maximum number of translated IPv4 flows of one endpoint, the maximum of all flows without an endpoint together,
	// and the same for IPv6. Defaults: a quarter and three quarters of the maps.
	VariableNatShares = "nat_shares"
	// VariableNatGuarantees are the guaranteed numbers of translated flows of each family, IPv4 first: of each endpoint, of all flows without an endpoint
	// together, and of the node. Default: 1/2048 of the entries of the maps.
	VariableNatGuarantees = "nat_guarantees"
	// VariableNatBeyond are the maximum numbers of translated flows of each family, of all owners together, beyond their guarantees. Default: 11/16 of the
	// flows that the maps can hold.
	VariableNatBeyond = "nat_beyond"
	// VariablePolicyCIDRNodes is 1 if entries of [PolicyCIDROutside] match nodes too. Default 0.
	VariablePolicyCIDRNodes = "policy_cidr_nodes"
	// VariableNatPortFirst and VariableNatPortLast are the range of source ports of flows that leave with an address of the node. Defaults: 32768 and 65535.
	VariableNatPortFirst = "nat_port_first"
	VariableNatPortLast  = "nat_port_last"
	// VariableVerdictEvents is 0 if policy verdicts are not reported. Default 1.
	VariableVerdictEvents = "verdict_events"
)

// Load-time constants of the socket programs.
const (
	// VariableSockHostNetns is the cookie of the node's own network namespace, 64 bits. Default 0, which no namespace has.
	VariableSockHostNetns = "sock_host_netns"
	// VariableSockHostOnly is 1 if sockets of pods are not translated. Default 0.
	VariableSockHostOnly = "sock_host_only"
	// VariableSockBindProtection is 0 if processes of the node may bind ports of services. Default 1.
	VariableSockBindProtection = "sock_bind_protection"
)

// ErrUnknownProgram is the error of [Load] for a name that no object has.
var ErrUnknownProgram = errors.New("no such program")

// Programs lists the names of all packet programs.
func Programs() []string {
	return []string{PodEgress, PodIngress, HostEgress, NetdevIngress, NetdevEgress, L3DevIngress, L3DevEgress, OverlayIngress}
}

// IsStep reports whether a program is a step of another one, which is never attached to a hook.
func IsStep(program string) bool {
	return slices.Contains([]string{PodNeighbor, PodError, PodService, PodRefuse, PodToNode, PodSlow}, program)
}

// SockPrograms lists the names of all socket programs.
func SockPrograms() []string {
	return []string{SockConnect4, SockConnect6, SockSendmsg4, SockSendmsg6, SockRecvmsg4, SockRecvmsg6,
		SockGetpeername4, SockGetpeername6, SockBind4, SockBind6}
}

// Objects lists the names of all objects.
func Objects() []string {
	return []string{PodEgress, PodIngress, HostEgress, NetdevIngress, NetdevEgress, OverlayIngress, Sock, SockList}
}

// Load returns the object with a name of [Objects], or the one of a program of [Programs] with its load-time constants. Each call returns a separate spec,
// which the caller may change.
func Load(object string) (*ebpf.CollectionSpec, error) {
	if spec := ahead.Load().of(object, (*specPointer).take); spec != nil {
		return spec, nil
	}
	return read(object)
}

func read(object string) (*ebpf.CollectionSpec, error) {
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
	case L3DevIngress, L3DevEgress:
		spec, err := read(objectOf(object))
		if err != nil {
			return nil, err
		}
		return spec, withoutLinkHeader(spec, object)
	}
	return nil, fmt.Errorf("load program %s: %w", object, ErrUnknownProgram)
}

// objectOf returns the object that has a program of [Programs], by the name of the program whose name the object has.
func objectOf(program string) string {
	switch program {
	case L3DevIngress:
		return NetdevIngress
	case L3DevEgress:
		return NetdevEgress
	}
	return program
}

// withoutLinkHeader makes the program of an object one for packets that begin with their IP header, and renames it.
func withoutLinkHeader(spec *ebpf.CollectionSpec, name string) error {
	object := objectOf(name)
	program := spec.Programs[object]
	program.Name = name
	delete(spec.Programs, object)
	spec.Programs[name] = program
	return spec.Variables[VariableLinkHeader].Set(uint32(0))
}

// MapSpecs collects the maps that all programs share by name, including maps of other generations. Data sections belong to a single program, and maps that
// [ofGeneration] selects belong to a single load. A map that two objects declare differently is an error.
func MapSpecs() (map[string]*ebpf.MapSpec, error) {
	objects := Objects()
	specs := make([]*ebpf.CollectionSpec, len(objects))
	var reading errgroup.Group
	for i, object := range objects {
		reading.Go(func() (err error) {
			if specs[i] = ahead.Load().of(object, (*specPointer).get); specs[i] == nil {
				specs[i], err = read(object)
			}
			return err
		})
	}
	if err := reading.Wait(); err != nil {
		return nil, err
	}
	all := map[string]*ebpf.MapSpec{}
	for i, object := range objects {
		for name, spec := range specs[i].Maps {
			if strings.HasPrefix(name, ".") || ofGeneration(name, spec) {
				continue
			}
			if have, ok := all[name]; ok && !sameLayout(have, spec) {
				return nil, fmt.Errorf("collect map %s: program %s declares it differently", name, object)
			}
			all[name] = spec.Copy()
		}
	}
	return all, nil
}

// ofGeneration reports whether a map must never be shared between generations: a tail call would enter a program of another generation, and scratch memory
// may have another layout. Such a map is never pinned; each load creates its own. A per-CPU map counts as scratch memory unless it is a counter. The agent
// passes the previous maps of flows ([PreviousName]) to a load.
func ofGeneration(name string, m *ebpf.MapSpec) bool {
	switch m.Type {
	case ebpf.ProgramArray, ebpf.ArrayOfMaps, ebpf.HashOfMaps:
		return true
	case ebpf.Hash:
		return strings.HasSuffix(name, previousSuffix)
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

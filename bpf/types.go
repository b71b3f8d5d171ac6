package bpf

// Types that Go and C share, generated from the type information of the objects.
type (
	// EndpointFacts is a value of endpoint_facts. A slot whose Ifindex is 0 is free.
	EndpointFacts = podEgressEndpointFacts
	// EndpointRef is a value of bpf_endpoints.
	EndpointRef = podEgressEndpointRef
	// AddrKey is a key of bpf_endpoints and of ipcache; see [NewAddrKey].
	AddrKey = podEgressAddrKey
	// LpmKey is a key of ipcache_prefixes and of cidrs; see [NewLpmKey].
	LpmKey = podEgressLpmKey
	// CIDR is a value of cidrs; see [NewCIDR].
	CIDR = podEgressCidr
	// IpcacheEntry is a value of ipcache and of ipcache_prefixes.
	IpcacheEntry = podEgressIpcacheEntry
	// MetricsValue is a value of metrics, one per CPU; see [MetricsSlot].
	MetricsValue = podEgressMetricsValue
	// TokenBucket is a value of drop_tokens and of verdict_tokens.
	TokenBucket = podEgressTokenBucket
	// DropEvent is the beginning of a record of the ring buffer.
	DropEvent = podEgressDropEvent
	// PolicyKey is a key of policy; see [NewPolicyKey].
	PolicyKey = podEgressPolicyKey
	// PolicyRangeKey is a key of policy_ranges; see [NewPolicyRangeKey].
	PolicyRangeKey = podEgressPolicyRangeKey
	// PolicyEntry is a value of policy and of policy_ranges.
	PolicyEntry = podEgressPolicyEntry
	// CtKey4 is a key of ct_est4, ct_new4 and ct_burst4; both directions of a flow have the same key.
	CtKey4 = podEgressCtKey4
	// CtKey6 is a key of ct_est6 and ct_new6.
	CtKey6 = podEgressCtKey6
	// CtEntry is a value of the conntrack maps.
	CtEntry = podEgressCtEntry
	// FragKey is a key of frags.
	FragKey = podEgressFragKey
	// FragEntry is a value of frags.
	FragEntry = podEgressFragEntry
	// ServiceKey is a key of services; see [NewServiceKey].
	ServiceKey = podEgressServiceKey
	// Service is a value of services.
	Service = podEgressService
	// Backend is a value of backends.
	Backend = podEgressBackend
	// AffinityKey is a key of affinity.
	AffinityKey = podEgressAffinityKey
	// AffinityEntry is a value of affinity.
	AffinityEntry = podEgressAffinityEntry
	// AffinityMember is a key of affinity_members.
	AffinityMember = podEgressAffinityMember
	// SourceRangeKey is a key of source_ranges.
	SourceRangeKey = podEgressSourceRangeKey
	// NatKey4 is a key of nat4.
	NatKey4 = podEgressNatKey4
	// NatKey6 is a key of nat6.
	NatKey6 = podEgressNatKey6
	// NatEntry4 is a value of nat4.
	NatEntry4 = podEgressNatEntry4
	// NatEntry6 is a value of nat6.
	NatEntry6 = podEgressNatEntry6
	// NatCount is a value of nat_flows and nat_totals.
	NatCount = podEgressNatCount
	// Netdev is a value of netdevs.
	Netdev = netdevEgressNetdev
	// Node is a slot of nodes; all zero for an unused id.
	Node = podEgressNode
	// NodeAddr is a value of node_addrs.
	NodeAddr = podEgressNodeAddr
	// Overlay is the value of overlay.
	Overlay = podEgressOverlay
	// Encap is the value of encap.
	Encap = podEgressEncap
	// DatapathState is the value of datapath.
	DatapathState = podEgressDatapathState
)

// OverlayUncompleted in the priority of a packet of the node (SO_PRIORITY) leaves its checksum to the device of the underlay, independent of the peer's
// [Node]. It is OVERLAY_UNCOMPLETED in overlay.h.
const OverlayUncompleted = 0x57470001

// Protocol is a version of the data that hooks pass to each other.
type Protocol = podEgressProtocol

// Data that hooks of this generation can pass to each other; protocol.h describes it.
const (
	ProtocolLowest  = uint32(podEgressProtocolPROTOCOL_LOWEST)
	ProtocolHighest = uint32(podEgressProtocolPROTOCOL_HIGHEST)
)

const (
	// FlagIPv4 and FlagIPv6 in [EndpointFacts] select the valid addresses.
	FlagIPv4 uint16 = 1
	FlagIPv6 uint16 = 2
	// FlagHost in [EndpointRef] means that the address belongs to the node itself.
	FlagHost uint32 = 1

	// Directions of [MetricsSlot].
	DirectionUnknown uint8 = 0
	DirectionIngress uint8 = 1
	DirectionEgress  uint8 = 2

	directions = 3

	// NodeThis is the id of this node in [NodeAddr]; in [IpcacheEntry] it means that the address belongs to no other node.
	NodeThis uint16 = 0
	// NodeUnderlay is the kind in [NodeAddr] of a node's address in the tunnel's underlay.
	NodeUnderlay uint8 = 1
	// NodeTunnel and NodeDirect are the modes of a [Node]; nodes.h describes them.
	NodeTunnel uint8 = 0
	NodeDirect uint8 = 1
	// NodeRouted is a flag of a [Node], which may send to pods without the tunnel.
	NodeRouted uint8 = 1
)

// MetricsSlot is the index in metrics of one reason in one direction. Reason 0 counts forwarded packets.
func MetricsSlot(reason, direction uint8) uint32 {
	return uint32(reason)*directions + uint32(direction)
}

// MetricsReason returns the reason and direction of a slot of metrics.
func MetricsReason(slot uint32) (reason, direction uint8) {
	return uint8(slot / directions), uint8(slot % directions)
}

// CtSignal is a record of the ring buffer ct_signals, which wakes the collector of flows.
type CtSignal struct {
	Family   uint32 // 4 or 6; plus one of the values below for nat4 or nat6
	Endpoint uint32 // endpoint whose quota is used up, 0 when the table is full; for nat4 and nat6 the owner of the flow, 0 for none on this node
}

// Added to the family of a [CtSignal]; nat_maps.h describes when.
const (
	NatSignal      uint32 = 16 // no entry or no port for a flow
	NatShareSignal uint32 = 32 // an endpoint has used up its quota
	NatWakeSignal  uint32 = 48 // an endpoint approaches its quota; no flow was dropped
)

// Scopes of a [ServiceKey], by the location of the client.
const (
	ScopeExternal uint8 = 0 // all clients; with [ServiceTwoScopes] only clients outside the cluster
	ScopeInternal uint8 = 1 // pods and processes of this node
)

// Flags of a [Service]; service_maps.h describes them.
const (
	ServiceTwoScopes  = podEgressServiceFlagSERVICE_TWO_SCOPES
	ServiceOutside    = podEgressServiceFlagSERVICE_OUTSIDE
	ServiceRanges     = podEgressServiceFlagSERVICE_RANGES
	ServiceDrop       = podEgressServiceFlagSERVICE_DROP
	ServiceAffinity   = podEgressServiceFlagSERVICE_AFFINITY
	ServiceMaglev     = podEgressServiceFlagSERVICE_MAGLEV
	ServiceNodePort   = podEgressServiceFlagSERVICE_NODE_PORT
	ServiceLocalOnly  = podEgressServiceFlagSERVICE_LOCAL_ONLY
	ServiceLoopback   = podEgressServiceFlagSERVICE_LOOPBACK
	ServiceRangesDeny = podEgressServiceFlagSERVICE_RANGES_DENY
)

// Numbers of entries of maps whose size is no flag: as in service_maps.h and nat_maps.h.
const (
	ServicesMax = 65536
	AffinityMax = 8192
	NatMax      = 524288
)

// BackendLocal in [Backend] means that the backend is a pod of this node, or the node itself.
const BackendLocal uint8 = 1

// NatPlace is the place of a translation.
type NatPlace = podEgressNatPlace

// ServiceFlag is any of the flags of a [Service].
type ServiceFlag = podEgressServiceFlag

// NatFlag is any of the flags of a translated flow.
type NatFlag = podEgressNatFlag

// Places; nat_maps.h describes them.
const (
	NatFromPod     = podEgressNatPlaceNAT_FROM_POD
	NatToPod       = podEgressNatPlaceNAT_TO_POD
	NatFromOutside = podEgressNatPlaceNAT_FROM_OUTSIDE
	NatToOutside   = podEgressNatPlaceNAT_TO_OUTSIDE
)

// Flags of translated flows; nat_maps.h describes them.
const (
	NatService           = podEgressNatFlagNAT_SERVICE
	NatMasquerade        = podEgressNatFlagNAT_MASQUERADE
	NatNode              = podEgressNatFlagNAT_NODE
	NatReply             = podEgressNatFlagNAT_REPLY
	NatSenderFin         = podEgressNatFlagNAT_SENDER_FIN
	NatSenderReset       = podEgressNatFlagNAT_SENDER_RESET
	NatRedirect          = podEgressNatFlagNAT_REDIRECT
	NatDirect            = podEgressNatFlagNAT_DIRECT
	NatSenderEstablished = podEgressNatFlagNAT_SENDER_ESTABLISHED
)

// Slots of nat_totals; nat_maps.h describes their counters.
const (
	NatBeyond = uint32(podEgressNatTotalNAT_BEYOND)
	NatOfNode = uint32(podEgressNatTotalNAT_OF_NODE)
)

// Flags of a [Netdev].
const (
	NetdevMasqueradeIPv4 = netdevEgressNetdevFlagNETDEV_MASQUERADE_IPV4
	NetdevMasqueradeIPv6 = netdevEgressNetdevFlagNETDEV_MASQUERADE_IPV6
)

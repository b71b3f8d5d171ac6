package bpf

// What Go and C share, generated from the type information of the objects.
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
	// DropEvent is what a record of the ring buffer begins with.
	DropEvent = podEgressDropEvent
	// PolicyKey is a key of policy; see [NewPolicyKey].
	PolicyKey = podEgressPolicyKey
	// PolicyRangeKey is a key of policy_ranges; see [NewPolicyRangeKey].
	PolicyRangeKey = podEgressPolicyRangeKey
	// PolicyEntry is a value of policy and of policy_ranges.
	PolicyEntry = podEgressPolicyEntry
	// CtKey4 is a key of ct_est4, ct_new4 and ct_burst4; both directions of a flow have the same.
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
	// Node is a slot of nodes; all zero for an id that no node has.
	Node = hostEgressNode
	// NodeAddr is a value of node_addrs.
	NodeAddr = hostEgressNodeAddr
	// Overlay is the value of overlay.
	Overlay = hostEgressOverlay
	// Encap is the value of encap.
	Encap = podEgressEncap
	// DatapathState is the value of datapath.
	DatapathState = podEgressDatapathState
)

// OverlayUncompleted in the priority of a packet of the node (SO_PRIORITY) leaves its checksum to the device of the underlay, whatever [Node] says of the peer. It is
// OVERLAY_UNCOMPLETED in overlay.h.
const OverlayUncompleted = 0x57470001

// What hooks of this generation can read from each other; protocol.h says what that is.
const (
	ProtocolLowest  = uint32(podEgressProtocolPROTOCOL_LOWEST)
	ProtocolHighest = uint32(podEgressProtocolPROTOCOL_HIGHEST)
)

const (
	// FlagIPv4 and FlagIPv6 say in [EndpointFacts] which addresses count.
	FlagIPv4 uint16 = 1
	FlagIPv6 uint16 = 2
	// FlagHost says in [EndpointRef] that the node itself has the address.
	FlagHost uint32 = 1

	// Directions of [MetricsSlot].
	DirectionUnknown uint8 = 0
	DirectionIngress uint8 = 1
	DirectionEgress  uint8 = 2

	directions = 3

	// NodeThis is the id of this node in [NodeAddr]; in [IpcacheEntry] it says that no other node has the address.
	NodeThis uint16 = 0
	// NodeUnderlay is the kind in [NodeAddr] of an address by which a node sends and receives in the tunnel.
	NodeUnderlay uint8 = 1
	// NodeTunnel and NodeDirect are the modes of a [Node]; nodes.h says what they mean.
	NodeTunnel uint8 = 0
	NodeDirect uint8 = 1
	// NodeRouted is a flag of a [Node], which may send to pods without the tunnel.
	NodeRouted uint8 = 1
)

// MetricsSlot is the index in metrics of one reason in one direction. Reason 0 counts what was forwarded.
func MetricsSlot(reason, direction uint8) uint32 {
	return uint32(reason)*directions + uint32(direction)
}

// MetricsReason takes a slot of metrics apart.
func MetricsReason(slot uint32) (reason, direction uint8) {
	return uint8(slot / directions), uint8(slot % directions)
}

// CtSignal is a record of the ring buffer ct_signals, which wakes the collector of flows.
type CtSignal struct {
	Family   uint32 // 4 or 6, with one of those below added when it is about nat4 or nat6
	Endpoint uint32 // whose share is used up, 0 when the table is full; of nat4 and nat6 whose flow it is, 0 for none of this node
}

// Added to the family of a [CtSignal]; nat_maps.h says when.
const (
	NatSignal      uint32 = 16 // a flow found no room or no port
	NatShareSignal uint32 = 32 // an endpoint has used up its share
	NatWakeSignal  uint32 = 48 // an endpoint comes near it; nothing was refused
)

// Scopes of a [ServiceKey]: who asks.
const (
	ScopeExternal uint8 = 0 // everybody; with [ServiceTwoScopes] only who comes from outside the cluster
	ScopeInternal uint8 = 1 // pods and processes of this node
)

// Flags of a [Service]; service_maps.h says what they mean.
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

// How many entries maps have that flags do not say otherwise for: as in service_maps.h and nat_maps.h.
const (
	ServicesMax = 65536
	AffinityMax = 8192
	NatMax      = 524288
)

// BackendLocal says in [Backend] that it is a pod of this node, or the node itself.
const BackendLocal uint8 = 1

// NatPlace says where a translation takes place.
type NatPlace = podEgressNatPlace

// NatFlag is any of the flags of a translated flow.
type NatFlag = podEgressNatFlag

// Places; nat_maps.h says where they are.
const (
	NatFromPod     = podEgressNatPlaceNAT_FROM_POD
	NatToPod       = podEgressNatPlaceNAT_TO_POD
	NatFromOutside = podEgressNatPlaceNAT_FROM_OUTSIDE
	NatToOutside   = podEgressNatPlaceNAT_TO_OUTSIDE
)

// Flags of translated flows; nat_maps.h says what they mean.
const (
	NatService      = podEgressNatFlagNAT_SERVICE
	NatMasquerade   = podEgressNatFlagNAT_MASQUERADE
	NatNode         = podEgressNatFlagNAT_NODE
	NatReply        = podEgressNatFlagNAT_REPLY
	NatSenderFin    = podEgressNatFlagNAT_SENDER_FIN
	NatSenderReset  = podEgressNatFlagNAT_SENDER_RESET
	NatRedirect     = podEgressNatFlagNAT_REDIRECT
	NatDirect       = podEgressNatFlagNAT_DIRECT
	NatSenderStands = podEgressNatFlagNAT_SENDER_STANDS
)

// Slots of nat_totals; nat_maps.h says what they count.
const (
	NatBeyond = uint32(podEgressNatTotalNAT_BEYOND)
	NatOfNode = uint32(podEgressNatTotalNAT_OF_NODE)
)

// Flags of a [Netdev].
const (
	NetdevMasqueradeIPv4 = netdevEgressNetdevFlagNETDEV_MASQUERADE_IPV4
	NetdevMasqueradeIPv6 = netdevEgressNetdevFlagNETDEV_MASQUERADE_IPV6
)

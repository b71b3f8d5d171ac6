package main

// Kernel series: the oldest that Waggle supports, and one with features that the oldest lacks (tcx).
const (
	oldest = "6.1"
	newer  = "6.12"
	both   = oldest + " " + newer
)

// baseModules lists the modules that the agent and most tests use and that Debian does not compile into the kernel. A Debian machine loads them on demand; an
// emulated machine loads them at its start.
var baseModules = []string{"veth", "vxlan", "tun", "dummy", "bridge", "macvlan", "cls_bpf", "sch_ingress", "nf_tables", "nft_ct", "nft_chain_nat",
	"nft_fib_inet", "vrf", "tcp_diag", "udp_diag"}

// espModules lists the modules for an ESP state with AES-GCM: the protocol in both families, its configuration, and the modules that the kernel would load by
// modprobe to build the cipher.
const espModules = "esp4 esp6 xfrm_user gcm ctr ghash-generic seqiv ecb drbg sha512_generic"

// agentPrograms lists the programs that a node of test/node runs.
const agentPrograms = "waggle-agent waggle-cni waggle"

// suites lists the tests that run on kernels. The oldest kernel runs the tests of verifier, hooks, maps, netlink and sockets; the newer kernel runs the tests
// of parts that differ there: verifier, tcx, and runs with one and with two complete nodes.
var suites = []suite{
	{pkg: "bpf/tests", kernels: oldest, tests: "Programs_.*|Maps_.*|Resize_(FlowsAlternateBetweenGenerations|DeletesInBoth|DischargesOnce|OneMapFull_CreatesInNeither)|Conntrack_(Full|ConcurrentEstablish_CountsOnce)|Events_.*|OverlayIngress_.*|EncapProbe|NetdevIngress_DecapsulatesSupportedFamilies|Real_Tunnel|Real_TunnelCompletesChecksums|Real_Direct|Real_PodsCannotEvadeMasquerade|Real_DirectMTUExceeded|Real_ServiceMTUExceeded|VNI_.*|LocalOrigin_.*|NetdevEgress_PodsAvoidSocketPorts|NetdevIngress_RepliesAreNoRequestsOfAService|" +
		"Real_(Datagrams|Streams|TTLExpires|ShortFrames|PagedHeaders|ReplyDoesNotFit|GatewayIsReachable|PortUnreachable|Services|" +
		"StreamsThroughTranslations|ErrorsThroughTranslations)|" +
		"Sock_(TCP|OtherPortAndProtocol|NoBackends|NoBackendsDropInAPod|TwoScopes|Pods|BindProtection|ConnectedUDP|UnconnectedUDP|" +
		"ManyServicesOfOneSocket|OneBackendOfTwoServices|BackendsChangeUnderAnUnconnectedSocket|Affinity)", modules: "tun vxlan"},
	{pkg: "bpf/tests", kernels: newer, tests: "Programs_.*|Maps_.*|Events_.*|EncapProbe"},
	{pkg: "cells/datapath/basedevices", kernels: oldest, tests: ".*"},
	{pkg: "cells/datapath/ctgc", kernels: oldest, tests: ".*"},
	{pkg: "cells/datapath/ctgc", kernels: newer, tests: "Delete_.*|DeleteAffinity_.*"},
	{pkg: "cells/datapath/routereconciler", kernels: oldest, tests: ".*"},
	{pkg: "cells/datapath/deviceobserver", kernels: oldest, tests: "Observer_(AgreesWithTheKernel|RecoversFromAnOverrun)"},
	{pkg: "cells/endpoint/endpointmanager", kernels: oldest, tests: ".*"},
	{pkg: "cells/identity/ipcachemaps", kernels: oldest, tests: "Kernel_.*"},
	{pkg: "cells/endpoint/linkreaper", kernels: oldest, tests: ".*"},
	{pkg: "cells/datapath/loader", kernels: oldest, tests: "Group_.*|Guard_.*|Join_.*|DeviceLink_(ReusedAndUpdated|FilterInPlaceOfTCX)|" +
		"Netdev_FiltersInPlaceOfTCX|Observe_.*|Steps_OutliveTheAgent|Generation_.*"},
	{pkg: "cells/datapath/loader", kernels: newer, tests: "Generation_.*|DeviceLink_(ReusedAndUpdated|MovedFirst_ForeignStays)|" +
		"Netdev_BothHooksBesideOthers|Observe_.*"},
	{pkg: "cells/datapath/maps", kernels: oldest, tests: ".*"},
	{pkg: "cells/agent/metrics", kernels: oldest, tests: ".*"},
	{pkg: "cells/datapath/monitor", kernels: oldest, tests: ".*"},
	{pkg: "cells/node/nodehealthprober", kernels: oldest, tests: ".*"},
	{pkg: "cells/node/nodemaps", kernels: oldest, tests: ".*"},
	{pkg: "cells/datapath/overlay", kernels: oldest, tests: ".*"},
	{pkg: "cells/endpoint/podmtu", kernels: oldest, tests: ".*"},
	{pkg: "cells/service/servicemaps", kernels: oldest, tests: "Maps_.*"},
	{pkg: "cells/service/sockterm", kernels: oldest, tests: ".*"},
	{pkg: "cni", kernels: oldest, tests: "Add_DualStack|Check_FindsMissingObjects|Del_DefersLinkDeletion_NamespaceIsReusable|" +
		"Del_ForeignLink|GC_DeletesUnlistedAttachments", programs: "waggle-cni"},
	{pkg: "pkg/datapath/bpffs", kernels: oldest, tests: ".*"},
	{pkg: "pkg/datapath/ctmap", kernels: oldest, tests: ".*"},
	{pkg: "pkg/icmpecho", kernels: oldest, tests: ".*"},
	{pkg: "pkg/inventory", kernels: oldest, tests: ".*"},
	{pkg: "pkg/datapath/mapreconciler", kernels: oldest, tests: ".*"},
	{pkg: "pkg/datapath/natmap", kernels: oldest, tests: ".*"},
	{pkg: "pkg/datapath/nftguard", kernels: both, tests: ".*"},
	{pkg: "pkg/datapath/rtnl", kernels: oldest, tests: ".*"},
	{pkg: "pkg/datapath/sockdiag", kernels: oldest, tests: "List|Destroy|Destroy_.*|Each_.*"},
	{pkg: "pkg/datapath/sockdiag", kernels: newer, tests: "Destroy|Destroy_.*"},
	{pkg: "pkg/datapath/tc", kernels: both, tests: ".*"},
	{pkg: "test/kernels/modules", kernels: both, tests: ".*", modules: "wireguard sch_fq " + espModules},
	{pkg: "test/node", kernels: oldest, tests: "Traffic_BetweenPodsNodeAndOutside|Source_.*|Guard_.*|Cluster_.*", programs: agentPrograms, alone: true},
	{pkg: "test/node", kernels: newer, tests: "Traffic_BetweenPodsNodeAndOutside|Cluster_.*", programs: agentPrograms, alone: true},
}

// Reasons that several rows share.
const (
	decision  = "verdicts of the programs are the same on every kernel that loads them; make test covers them on the machine's own kernel"
	unchanged = "the calls exist since the oldest kernel and have not changed; the oldest kernel runs them all"
	node      = "how agent and plugin process results of the kernel depends on no kernel; the packages above test the results of each kernel"
	noTCX     = "the kernel has no tcx, which came with Linux 6.6"
)

// omissions lists the tests that do not run on a kernel.
var omissions = []omission{
	{"bpf/tests", both, "Nat(Share|Guarantee)_.*|Finish_.*|Conntrack_(A.*|Check.*|Connection.*|D.*|E.*|For.*|Guarantee|I.*|L.*|N.*|O.*|R.*|S.*|T.*|V.*)|Steps_.*|FlowEntry_.*|Fast_.*|Account_.*|Resize_ResultsEqualNoResize|Reject_.*|PodEgress_.*|Netdev_.*|NetdevEgress_(RepliesOf|TheNode|Restores|TheTunnel|Masquerades).*|NetdevIngress_(KeepsTheTunnelForNodes|MutatedTunnelFrames|Decapsulates|DecapsulatesWhenAllHooksAreNew|LeavesTheUnusualToTheDevice|DeliversDirectly|LeavesTheUnusualToTheStack|EstablishedFlowsEnterPodDirectly)|Real_Direct(WithoutOffloads|Errors|IsEvaluated|RepliesOfServices)|Real_EstablishedFlowsEnterPodDirectly|Real_Tunnel(FramesEqualDeviceFrames|IdentityOfThisNode_IsSentAsWorld|WithoutOffloads|MTUExceeded|FallsBackToDevice|TinyMTU|Errors)|Service_.*|Services_.*|ARP_.*|ICMP_.*|HostToPod|HostEgress_.*|PodIngress_.*|Policy_.*|ND_.*|IPv6_.*|" +
		"Fragments|Fragments_.*|Verdict_.*", decision},
	{"bpf/tests", both, "Real_(ServicesReject|Policy|NoBackend_ErrorToOutsideClient|SpoofedLocalAddress_IsDropped|ClientsOfRemoteBackendsLeaveCapacity|MasqueradeKeepsConnectionsApart|" +
		"RepliesKeepPodAddress|SmallerMTUToBackend|FirstDatagramIsTooBig|FirstFragmentIsTooBig|ServicesFromOutside|ServicesThroughTunnel)", decision + "; other tests of the group cover the processing of packets by the kernel"},
	{"bpf/tests", newer, "Resize_(FlowsAlternateBetweenGenerations|DeletesInBoth|DischargesOnce|OneMapFull_CreatesInNeither)|Conntrack_(Full|ConcurrentEstablish_CountsOnce)", "results of map operations are unchanged since Linux 6.4, as tests on the machine's own kernel show"},
	{"bpf/tests", newer, "OverlayIngress_.*|NetdevIngress_DecapsulatesSupportedFamilies|Real_Tunnel|Real_TunnelCompletesChecksums|Real_Direct|Real_PodsCannotEvadeMasquerade|Real_DirectMTUExceeded|Real_ServiceMTUExceeded|VNI_.*|LocalOrigin_.*|NetdevEgress_PodsAvoidSocketPorts|NetdevIngress_RepliesAreNoRequestsOfAService|Real_(Datagrams|Streams|TTLExpires|ShortFrames|PagedHeaders|ReplyDoesNotFit|GatewayIsReachable|PortUnreachable|Services|" +
		"StreamsThroughTranslations|ErrorsThroughTranslations)|Sock_(TCP|OtherPortAndProtocol|NoBackends|NoBackendsDropInAPod|TwoScopes|Pods|BindProtection|" +
		"ConnectedUDP|UnconnectedUDP|ManyServicesOfOneSocket|OneBackendOfTwoServices|BackendsChangeUnderAnUnconnectedSocket|Affinity)",
		"helpers and socket hooks equal the oldest kernel's and the machine's own kernel's, which run these tests"},
	{"bpf/tests", both, "Sock_ManySockets", "it measures the cost of many sockets; one socket is enough to test a kernel"},
	{"bpf/tests", both, "CtNow_.*", "it needs the program unshare; the clock of namespaces is unchanged since Linux 5.6"},
	{"cells/datapath/basedevices", newer, ".*", unchanged},
	{"cells/datapath/ctgc", newer, "Pass_.*", "batch operations of maps equal the oldest kernel's"},
	{"cells/datapath/routereconciler", newer, ".*", unchanged},
	{"cells/datapath/deviceobserver", newer, "Observer_(AgreesWithTheKernel|RecoversFromAnOverrun)", unchanged},
	{"cells/datapath/deviceobserver", both, "Observer_LeavesNoGoroutine", "it tests goroutines only"},
	{"cells/endpoint/endpointmanager", newer, ".*", unchanged},
	{"cells/identity/ipcachemaps", newer, "Kernel_.*", unchanged},
	{"cells/identity/ipcachemaps", both, "Verifier_.*", "it counts slices of a large map; Kernel_ tests the same calls"},
	{"cells/endpoint/linkreaper", newer, ".*", unchanged},
	{"cells/datapath/loader", both, "Constants_.*", "it compares constants of objects and loads nothing"},
	{"cells/datapath/loader", both, "SetFilter_.*", "it tests the memory of the cell; Guard_ and pkg/datapath/tc test the same filters in the kernel"},
	{"cells/datapath/loader", oldest, "Steps_PinIsRepaired", "it checks whether a file exists; Steps_OutliveTheAgent pins and unpins in this kernel"},
	{"cells/datapath/loader", oldest, "Netdev_BothHooksBesideOthers|DeviceLink_MovedFirst_ForeignStays", noTCX},
	{"cells/datapath/loader", newer, "Steps_.*|Group_.*|Guard_.*|Join_.*|DeviceLink_FilterInPlaceOfTCX|Netdev_FiltersInPlaceOfTCX",
		"filters, links and control groups equal the oldest kernel's; the newer kernel attaches by tcx"},
	{"cells/datapath/maps", newer, ".*", unchanged},
	{"cells/agent/metrics", newer, ".*", unchanged},
	{"cells/datapath/monitor", newer, ".*", unchanged},
	{"cells/policy/policymaps", both, "Programs_.*", decision},
	{"cells/node/nodehealthprober", newer, ".*", unchanged},
	{"cells/node/nodemaps", newer, ".*", unchanged},
	{"cells/datapath/overlay", newer, ".*", unchanged},
	{"cells/endpoint/podmtu", newer, ".*", unchanged},
	{"cells/service/servicemaps", newer, "Maps_.*", unchanged},
	{"cells/service/servicemaps", both, "Chain_.*", "it tests the cells that feed the maps; Maps_ tests the same calls in the kernel"},
	{"cells/service/sockterm", newer, ".*", unchanged},
	{"cmd/waggle-agent", both, ".*", "test/node covers the same kernel behaviour"},
	{"cni", both, "Runtime_.*|Version|Concurrent|Status_.*|Add_(OneFamily|NoLinkIsUndone|TerminatedIsUndone|Killed_DelRemovesRemains|" +
		"AllNamesUsedByPendingDeletions|ExistingAttachmentIsUntouched|BadNamespace|FailureIsUndone|NoCarrierIsUndone|WaitsForTheHostEnd|AgentDiesDuringPut|" +
		"AgentAbsent|AgentStarts|BadInput|UnknownFieldsAndLog)|Check_BadInput|GC_(ReportsAllErrors|WithoutListDeletesNothing|AgentAbsent)|" +
		"Del_(AfterCleanup_LeavesNothing|MissingAttachment_Succeeds|NameTakenInPod|WithoutNamespace|AgentAbsent|AgentDiesDuringDelete|AgentWaitsForTheQueue|AgentFails|QueueFull|QueueCannotBeWritten|QueueEntry_ExcludesLaterAttachment|" +
		"QueueEntryWithoutLink_MatchesAttachment)", "they test the plugin's results, its queue and its timeouts of 5 to 10 s; the remaining tests make the same calls"},
	{"cni", newer, "Add_DualStack|Check_FindsMissingObjects|Del_DefersLinkDeletion_NamespaceIsReusable|Del_ForeignLink|GC_DeletesUnlistedAttachments", unchanged},
	{"pkg/agentlock", both, ".*", "abstract socket names are older than the oldest kernel"},
	{"pkg/datapath/bpffs", newer, ".*", unchanged},
	{"pkg/datapath/ctmap", newer, ".*", unchanged},
	{"pkg/icmpecho", newer, ".*", unchanged},
	{"pkg/inventory", newer, ".*", unchanged},
	{"pkg/datapath/mapreconciler", newer, ".*", unchanged},
	{"pkg/datapath/natmap", newer, ".*", unchanged},
	{"pkg/datapath/nftforward", both, ".*", "it needs the program iptables, and reads back rules without processing in the kernel"},
	{"pkg/datapath/rtnl", newer, ".*", unchanged},
	{"pkg/setup", both, ".*", "it tests threads of Go only"},
	{"pkg/datapath/sockdiag", both, "List_ManySockets", "it measures the cost of many sockets; List tests the same calls"},
	{"pkg/datapath/sockdiag", newer, "List|Each_.*", unchanged},
	{"test/kube/...", both, ".*", "they need the programs of Kubernetes"},
	{"test/demo", both, ".*", "test/node covers its nodes, and part of test/node runs on these kernels"},
	{"test/nodekit", both, ".*", "they test the kit of the tests"},
	{"test/nodekit/load", both, ".*", "they test the load generator of the tests"},
	{"test/node", newer, "Source_.*|Guard_.*", "nftables and filters of pod links equal the oldest kernel's"},
	{"test/node", both, "Add_.*|Address_.*|AgentDown_.*|API_.*|APIServer_.*|Agent_.*|Attach_.*|BPFRoot_.*|CIDRs_.*|Check_.*|Churn_.*|Cleanup_.*|Clock_.*|Collect_.*|" +
		"Conntrack_.*|Crash_.*|Del_.*|Descriptors_.*|Drops_.*|Families_.*|Faults_.*|Firewalls_.*|Foreign_.*|GC_.*|Host_.*|Hostile_.*|ICMP_.*|" +
		"Identity_.*|Kills_.*|KubeProxy_.*|LegacyRouting_.*|MTU_.*|Mark_.*|Masquerade_.*|Memory_.*|Model_.*|Names_.*|Neighbour_.*|NodeAddresses_.*|NodeHealth_.*|NothingIsExecuted|PathTest_.*|Pins_.*|Plugin_.*|" +
		"Range_.*|Ranges_.*|ReducedCapabilities_.*|Repair_.*|Restart_.*|ReversePath_.*|Router_.*|Setup_.*|Snapshot_.*|SocketLB_.*|Sockets_.*|" +
		"Spoof_.*|StateFile_.*|Stop_.*|SyncTimeout_.*|Tracer_.*|Traffic_ClosedPortAnswersWithICMP|TwoNICs_.*|Stall_.*", node},
	{"test/node", both, "Generation_.*|Upgrade_.*", "they build other agents with the go command, which the virtual machine lacks; Revision_ replaces whole agents under traffic, and " +
		"cells/datapath/loader Generation_ the programs"},
	{"test/node", both, "Revision_(DowngradeAndUpgradeLoseNoPacket|TunnelLosesNothing)", "on an emulated CPU each takes about two minutes; the soak runs them on both kernels"},
	{"test/node", both, "Revision_(ServicesLoseNoPacket|FourNodesUnderTraffic)", "restarts with services took 170 s on an emulated CPU; " + node},
	{"test/node", both, "Native_.*", unchanged + ", as far as routes go; Cluster_NativeRouting_PodsReachEachOther sends between two nodes there"},
	{"test/node", both, "Hybrid_.*|Rolling_.*", "packet sockets and route metrics are older than the oldest kernel; pkg/icmpecho and cells/datapath/routereconciler test them there; " + node},
	{"test/node", both, "Tunnel_.*", "the driver of VXLAN with metadata is older than the oldest kernel, whose helpers for it bpf/tests OverlayIngress_.* calls; Cluster_AgentsSideBySideOnOneUnderlay sends between pods of two nodes through it there; " + node},
	{"test/node", both, "Policy_.*", decision},
	{"test/node", both, "Service_.*", decision + "; bpf/tests Real_Services covers services on the oldest kernel, where restarts took 170 s"},
}

// allowedSkips lists the tests that may skip themselves on a kernel. The list is empty: a test that a kernel cannot run is an omission.
var allowedSkips = []allowedSkip{}

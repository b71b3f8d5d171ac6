package main

import (
	"os"
	"strings"
)

// permittedSkips names the tests that may be skipped where everything is installed, each with the reason. Any other skip is a
// failure when CI=true: a property that is not tested is not proved.
var permittedSkips = map[string]string{
	"test/kernels/modules TestPrivilegedModules_WireGuardLink":          "this machine's kernel need not have the module: test/kernels loads it",
	"test/kernels/modules TestPrivilegedModules_FairQueue":              "this machine's kernel need not have the module: test/kernels loads it",
	"test/kernels/modules TestPrivilegedModules_ESPState":               "this machine's kernel need not have the module: test/kernels loads it",
	"test/node TestPrivilegedRevision_DowngradeAndUpgradeDisturbNobody": "needs the agent of another revision: only the soak builds one",
	"test/node TestPrivilegedRevision_ServicesLoseNoPacket":             "needs the agent of another revision: only the soak builds one",
	"test/node TestPrivilegedRevision_TunnelLosesNothing":               "needs the agent of another revision: only the soak builds one",
	"test/node TestPrivilegedWedge_AStoppedProcessIsNone":               "waits out the limits of the release: only the soak does",
	"test/node TestPrivilegedWedge_LittleCPUIsNone":                     "takes every CPU for a minute: only the soak does",
}

// expensive names the tests that use more than 10 s of CPU time or more than 15 s of waiting, each with the reason. So do their
// direct subtests, for which a row of the parent does not count. A row that ends in /* holds for all subtests of a test.
var expensive = map[string]string{
	"bpf TestObjects_AreBuiltFromTheSources":                                    "compiles every program with clang",
	"cells/identity TestMany_ObjectsFromElsewhere":                              "tens of thousands of label sets, under the race detector",
	"cells/identity TestMany_WithoutKubernetes":                                 "tens of thousands of label sets, under the race detector",
	"cells/identity TestNumbers_OfSeventyThousandLabelSets":                     "seventy thousand label sets, under the race detector",
	"cells/pathtest TestTester_FiveThousandNodes_LoadIsBounded":                 "tests the paths to 5,000 nodes in virtual time, under the race detector",
	"test/kube TestPrivilegedCluster":                                           "starts a control plane and three nodes",
	"test/kube TestPrivilegedCluster/*":                                         "each waits for a component of a real Kubernetes",
	"test/kube TestPrivilegedCluster_LeavesNothing":                             "starts and kills two clusters",
	"test/kube/cmd/cluster TestPrivilegedCluster_PodsOfDifferentNodes":          "starts a cluster of three nodes with the DaemonSet",
	"test/kube/cmd/cluster TestPrivilegedCluster_UpAndDown":                     "starts a cluster, and ends it",
	"test/kube/install TestPrivilegedInstall":                                   "starts a control plane, installs twice",
	"test/kube/install TestPrivilegedInstall/*":                                 "each waits for a component of a real Kubernetes",
	"test/kube/nodes TestPrivilegedNodes_OfARealKubernetes":                     "a cluster of three nodes; one goes and joins again, and all agents are replaced",
	"test/kube/nodes TestPrivilegedNodes_OfARealKubernetes/*":                   "each waits for a component of a real Kubernetes, or watches denied traffic",
	"test/kube/services TestPrivilegedServices_OfARealKubernetes/*":             "each replaces servers under clients",
	"test/kube/services TestPrivilegedServices_OfARealKubernetes":               "replaces all servers four times under clients, on two nodes",
	"test/kube/waggle TestPrivilegedClusterRole_GivesCIDRsAndCleansUp":          "starts a cluster; rounds of the collectors",
	"test/kube/waggle TestPrivilegedDaemonSet":                                  "the shared cluster with the DaemonSet",
	"test/kube/waggle TestPrivilegedDaemonSet/*":                                "each adds a node, and waits for its agent and pods",
	"test/kube/waggle TestPrivilegedDaemonSet/Restart_NobodyNotices":            "five ends of the agent, kubelet and containerd under clients",
	"test/kube/waggle TestPrivilegedDaemonSet_FailedTestUpdateAndUninstall":     "starts a cluster; rolls the DaemonSet over, twice",
	"test/kube/waggle TestPrivilegedNode_IPv6Alone":                             "starts a cluster",
	"test/kube/waggle TestPrivilegedOutage_DaemonSetRestarts":                   "starts a cluster; the API server is away for 8 s",
	"test/kube/waggle TestPrivilegedOutage_EndsNothing":                         "starts a cluster; the API server is away for 8 s",
	"test/kube/waggle TestPrivilegedPrepared":                                   "the shared cluster with agents that the tests start",
	"test/kube/waggle TestPrivilegedPrepared/*":                                 "each adds a node, and waits for its agent and pods",
	"test/kube/waggle TestPrivilegedServers":                                    "starts a cluster with two API servers, in three situations",
	"test/kube/waggle TestPrivilegedServers/*":                                  "each waits until all clients have found another API server",
	"test/node TestPrivilegedCrash_AgentAtEachCall/*":                           "an agent is killed at several calls, and started again after each",
	"test/node TestPrivilegedCrash_AgentWhileItStarts":                          "an agent under ptrace, killed at points of its start",
	"test/node TestPrivilegedFirewalls_AreNamedAndPass/*":                       "three nodes; paths that are blocked, and the next test after 20 s",
	"test/node TestPrivilegedGeneration_AnotherProtocolBetweenHooks":            "compiles another datapath and agent",
	"test/node TestPrivilegedGeneration_MapOfAnotherLayout":                     "compiles another datapath and agent",
	"test/node TestPrivilegedGeneration_MapsOfAnotherSize":                      "traffic through four changes of the datapath",
	"test/node TestPrivilegedGeneration_ThatDoesNotLoadKeepsTheOldOne/*":        "builds another agent, and upgrades under traffic",
	"test/node TestPrivilegedHybrid_ModesChangeUnderTraffic":                    "three nodes under traffic; tests that fail and pass in a row, and the next one after 20 s",
	"test/node TestPrivilegedHybrid_NodesChangeFromTheTunnel":                   "two nodes under traffic, each of which gets another agent",
	"test/node TestPrivilegedHybrid_PoliciesBetweenNodes":                       "two nodes, four times what a policy allows and denies, with and without the agent",
	"test/node TestPrivilegedHybrid_SourceCheckOfACloud":                        "two nodes; tests that fail, and the next one after 20 s, twice",
	"test/node TestPrivilegedHybrid_StrictReversePath":                          "tests that fail, and the next one after 20 s",
	"test/node TestPrivilegedHybrid_UpdateToPastTheStack":                       "two nodes; compiles another datapath and agent",
	"test/node TestPrivilegedKills_DisturbNobody":                               "ten kinds of kills under traffic",
	"test/node TestPrivilegedLegacyRouting_RulesOfForwardHold/*":                "two nodes; pings that rules drop, and the time until they count as lost",
	"test/node TestPrivilegedMTU_OneNodeHasLess/*":                              "three nodes; sizes that are lost are searched",
	"test/node TestPrivilegedMasquerade_AddressThatTheNodeLoses":                "an address counts as gone after 10 s",
	"test/node TestPrivilegedModel_EveryCallFailsOnce/*":                        "commands whose calls fail one after the other",
	"test/node TestPrivilegedModel_RandomSequences/*":                           "restarts and crashes in a random sequence",
	"test/node TestPrivilegedNative_PastTheStack":                               "two nodes; builds another agent",
	"test/node TestPrivilegedNative_PoliciesBetweenNodes":                       "two nodes, four times what a policy allows and denies, with and without the agent",
	"test/node TestPrivilegedNative_SourceCheckOfACloud":                        "two nodes; tests that fail, and the next one after 20 s, twice",
	"test/node TestPrivilegedNodeHealth_ANodeIsLostAndReturns":                  "three probes of 5 s without an answer, and two starts of an agent",
	"test/node TestPrivilegedPathTest_FaultsOfTheUnderlay/*":                    "tests in which nothing comes back, and the next one after 20 s",
	"test/node TestPrivilegedPathTest_SmallerLinkBetween":                       "three nodes; sizes that are lost, and the next test after 20 s",
	"test/node TestPrivilegedPolicy_Groups/Cilium":                              "all policies of one kind on a node; denied traffic is watched",
	"test/node TestPrivilegedPolicy_Groups/Kubernetes":                          "all policies of one kind on a node; denied traffic is watched",
	"test/node TestPrivilegedPolicy_LifeOfAPolicy":                              "steps of one policy in both modes, each with allowed and denied traffic",
	"test/node TestPrivilegedPolicy_StartOrderLeavesNoWindow":                   "nine starts of the agent",
	"test/node TestPrivilegedService_Groups/packets":                            "all tests of services that share a node",
	"test/node TestPrivilegedService_Groups/sockets":                            "all tests of services that share a node",
	"test/node TestPrivilegedService_PoliciesSeeThroughIt/*":                    "policies of each direction in one mode; denied traffic is watched",
	"test/node TestPrivilegedService_SocketsLoseTheirBackendWhileNoAgentRuns/*": "restarts of the agent, with sockets that must end and others that must stay",
	"test/node TestPrivilegedStop_SecondSignal":                                 "an agent that must be started and frozen",
	"test/node TestPrivilegedStop_WithAJobThatHangs":                            "an agent that must be started and frozen, and that ends after 30 s",
	"test/node TestPrivilegedTunnel_PodsThatTheNodeHasNotHeardOf":               "two nodes, four times what policies allow and deny, with and without the agent and the API server",
	"test/node TestPrivilegedTunnel_PoliciesBetweenNodes":                       "two nodes, four times what a policy allows and denies, with and without the agent",
	"test/node TestPrivilegedTunnel_WithAndWithoutTheDevice":                    "two nodes; builds another agent",
	"test/node TestPrivilegedUpgrade_DisturbsNobody":                            "compiles another datapath and agent",
	"test/node TestPrivilegedUpgrade_OfATunnel":                                 "compiles another datapath and agent",
	"test/node TestPrivilegedUpgrade_OfATunnel/*":                               "two nodes, four changes of the datapath under traffic, or four starts of an agent",
	"test/node TestPrivilegedWedge_ADiskThatHangs":                              "compiles an agent that can be frozen",
	"test/node TestPrivilegedWedge_EachLoopInTurn":                              "each of more than fifty loops is frozen until it is named",
	"test/nodekit/load TestPrivilegedLoad_SeesLoss":                             "traffic with gaps of every kind",
}

// kernelsFlags are flags for test/kernels, from the Makefile's KERNELS_FLAGS.
func kernelsFlags() []string { return strings.Fields(os.Getenv("KERNELS_FLAGS")) }

package main

import (
	"time"

	"github.com/waggle-net/waggle/test/bench/figures"
)

// unlimited is the budget of figures without a limit.
var unlimited figures.Limit

// Budgets of ADD and DEL, relative to ptp with host-local in the same run.
var (
	addIPv4Budget    = atMostOf(0.8)
	addDualBudget    = atMostOf(0.95)
	addCrowdedBudget = atMostOf(1.1) // of ADD on a node without pods
	delBudget        = atMostOf(0.4)
	addBurstBudget   = figures.Within(600 * time.Millisecond)
)

// Budgets of the agent: starts, memory and CPU while idle, sizes of stripped programs.
var (
	coldStartBudget  = figures.Within(time.Second)
	restoreBudget    = figures.Within(2 * time.Second) // of 250 endpoints
	residentBudget   = figures.AtMost(megabytes(55))
	restCPUBudget    = figures.AtMost(figures.Value{Number: 0.1, Unit: "% of a core"})
	agentSizeBudget  = figures.AtMost(megabytes(42))
	pluginSizeBudget = figures.AtMost(megabytes(8))
)

// Budgets of the datapath. The control of request-response is a program that only redirects to the peer.
var (
	requestBudget      = atLeastOf(0.98)
	oneRuleBudget      = atLeastOf(0.99) // of the rate without policy
	manyRulesBudget    = atLeastOf(0.98) // with 16,000 entries
	nativeTCPBudget    = atLeastOf(0.80) // of the rate over one bare veth pair
	tunnelTCPBudget    = atLeastOf(0.93) // over IPv4, of the rate by routes
	tunnelUDPBudget    = atLeastOf(0.88)
	tunnelBulkBudget   = atLeastOf(1 / 1.15)
	underlayIPv6Budget = atLeastOf(0.65)
	changesBudget      = atLeastOf(0.98) // while addresses on other nodes change
	changesCPUBudget   = figures.AtMost(figures.Value{Number: 0.5, Unit: "% of a core"})
	establishedBudget  = figures.AtMost(figures.Value{Number: 40, Unit: figures.NanoSec})
	oneSidedBudget     = figures.AtMost(figures.Value{Number: 90, Unit: figures.NanoSec})  // previously, an established flow took up to 289 ns
	packetBudget       = figures.AtMost(figures.Value{Number: 350, Unit: figures.NanoSec}) // the whole path, without the creation of a flow entry
	newFlowBudget      = figures.AtMost(figures.Value{Number: 1200, Unit: figures.NanoSec})
	instructionsBudget = figures.AtMost(figures.Value{Number: 14_000, Unit: "instructions"})
	stackBudget        = figures.AtMost(figures.Value{Number: 352, Unit: "bytes"})
	mapMemoryBudget    = figures.AtMost(megabytes(88)) // all maps at their default sizes
)

// Budgets of an agent in a cluster of 5,000 nodes and 150,000 pods, with a tunnel.
var (
	syncBudget         = figures.Within(500 * time.Millisecond)
	syncKernelBudget   = figures.Within(50 * time.Millisecond)
	routesBudget       = figures.AtMost(figures.Value{Number: 64, Unit: "routes"})
	joinBudget         = figures.Within(100 * time.Millisecond)
	podMemoryBudget    = figures.AtMost(figures.Value{Number: 0.7, Unit: "KB"})
	largeTrafficBudget = atLeastOf(0.98) // of the rate with 3 nodes
	largeRestBudget    = figures.AtMost(figures.Value{Number: 0.2, Unit: "% of a core"})
)

// Budgets of costs that must not grow with the cluster.
var (
	unusedPoliciesBudget = figures.AtMost(figures.Value{Number: 0, Unit: "entries"})
	classesBudget        = atMostOf(1)
	remotePodBudget      = figures.Within(300 * time.Microsecond)
	labelSetsBudget      = figures.AtMost(figures.Value{Number: 36_000, Unit: "identities"}) // of one hour: the timeout and two scans
	identityWritesBudget = figures.AtMost(figures.Value{Number: 1, Unit: "writes"})
	nodeJoinsBudget      = figures.Within(time.Millisecond)
	joinListsBudget      = figures.AtMost(figures.Value{Number: 20, Unit: "lists"})
)

// Budgets of policies and services.
var (
	verdictBudget       = figures.Within(40 * time.Millisecond)
	resolveBudget       = figures.Within(50 * time.Millisecond)
	oneIdentityBudget   = figures.Within(time.Millisecond)
	servicesBudget      = figures.Within(time.Second) // 50,000 of them
	serviceHeapBudget   = figures.AtMost(figures.Value{Number: 4, Unit: "KB"})
	serviceChangeBudget = figures.Within(5 * time.Millisecond)
	sharedBackendBudget = figures.Within(100 * time.Millisecond) // 2,000 services
	sliceEventBudget    = figures.Within(time.Millisecond)
	largeServiceBudget  = figures.Within(2 * time.Millisecond) // 10,000 endpoints
	iptablesBudget      = atLeastOf(1)                         // connections, against rules of iptables
	crowdConnectBudget  = atMostOf(1.03)                       // 30,000 services against one
	throughBudget       = atLeastOf(0.99)                      // request-response through a ClusterIP against direct access
)

// Budgets of documented times. Each limits the maximum over all rounds.
var (
	noneBudget        = figures.AtMost(figures.Value{Number: 0, Unit: "failed"})
	capacityBudget    = figures.Within(time.Second)
	addressBudget     = figures.Within(time.Second)
	announcedBudget   = figures.Within(time.Second)
	silentBudget      = figures.Within(40 * time.Second) // --verify-interval is 25 s
	conflictBudget    = figures.AtMost(figures.Value{Number: 5, Unit: "repairs/s"})
	conflictCPUBudget = figures.AtMost(figures.Value{Number: 2, Unit: "% of a core"})
	relabelBudget     = figures.Within(3 * time.Second)
	addNoServerBudget = figures.Within(4 * time.Second)
	inStepBudget      = figures.Within(6 * time.Second)
	failOverBudget    = figures.Within(5 * time.Second)
	stopBudget        = figures.Within(5 * time.Second)
	secondStopBudget  = figures.Within(time.Second)
	addNoAgentBudget  = figures.Within(6 * time.Second) // ADD waits 5 s for an agent that is absent
	delNoAgentBudget  = figures.Within(2 * time.Second) // DEL does not wait
	addReplacedBudget = figures.Within(5 * time.Second)
	instantBudget     = figures.Within(20 * time.Millisecond)
	lostBudget        = figures.AtMost(figures.Value{Number: 0, Unit: "datagrams"})
	namedBudget       = figures.Within(30 * time.Second) // a test of a new path begins within 8 s, and three in a row must fail
	frozenLoopBudget  = figures.Within(time.Minute)
	frozenTableBudget = figures.Within(12 * time.Second) // a write transaction may be held for 10 s
)

func megabytes(n float64) figures.Value { return figures.Value{Number: n, Unit: "MB"} }

func atMostOf(control float64) figures.Limit {
	return figures.AtMost(figures.Value{Number: control, Unit: figures.Ratio})
}

func atLeastOf(control float64) figures.Limit {
	return figures.AtLeast(figures.Value{Number: control, Unit: figures.Ratio})
}

package main

import "github.com/waggle-net/waggle/test/kube/clusterload"

// Budgets of an empty cluster. The time depends on the machine; the benchmark waits until it is idle.
var (
	emptyReadyBudget  = atMost(500) // ms
	emptyMemoryBudget = atMost(55)  // MB resident
)

// crowdedMemoryBudget limits the resident memory in MB with 200 pods on the node.
var crowdedMemoryBudget = atMost(60)

// Budgets of the large cluster. CPU and times depend on the machine: the API server and the writers of the load run there as well.
var (
	largeMemoryBudget = atMost(400) // MB resident, with and without churn
	churnRateBudget   = atLeast(95) // events a second: with fewer, the other rows with churn are not those of the budgets
	churnCPUBudget    = atMost(15)  // % of a core
	churnADDBudget    = atMost(1.2) // of ADD in the empty cluster, which the same run measures
	verdictBudget     = atMost(40)  // ms, p99, from the write of a policy
)

// unlimited is the budget of figures without a limit.
var unlimited limit

// fullSizes holds the sizes for which there are budgets. They are the defaults of the flags.
var fullSizes = sizes{pods: 200, events: 100,
	cluster: clusterload.Cluster{LocalNamespace: namespace, Nodes: 5000, Pods: 20000, Identities: 40000, Policies: 3000, Services: 50000}}

// crowded returns a budget of the pods on the node, and no budget when their number differs from that of the budget.
func (s sizes) crowded(budget limit) limit {
	if s.pods != fullSizes.pods {
		return unlimited
	}
	return budget
}

// large returns a budget of the large cluster, and no budget when a size differs from that of the budget.
func (s sizes) large(budget limit) limit {
	if s.pods != fullSizes.pods || s.events != fullSizes.events || s.cluster != fullSizes.cluster {
		return unlimited
	}
	return budget
}

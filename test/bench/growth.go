package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/waggle-net/waggle/test/bench/figures"
)

// largePolicies measures what policies cost in a large cluster: their entries in maps, and the CPU time for each change of other nodes.
func (b *bench) largePolicies(ctx context.Context) error {
	const (
		cell      = "./cells/policy/policymaps"
		unused    = "Policies_WithoutALocalEndpoint_TakeNoEntries"
		size      = "3000_policies,_40000_identities,_60000_ranges"
		inCluster = ", 3,000 policies, 40,000 identities, 60,000 CIDRs"
	)
	return errors.Join(
		b.goTest(ctx, cell, unused+"$", []figure{
			{unused, "added", "entries and named ranges of two policies with 40,000 CIDRs each that select no local endpoint", unusedPoliciesBudget, counts("entries")},
		}),
		b.classes(ctx),
		b.goBench(ctx, cell, "(RemoteIdentity|LocalEndpoint)/"+size, []figure{
			{"RemoteIdentity/" + size, "ns/event-cpu", "CPU of one identity of other nodes more or less" + inCluster, remotePodBudget, durations},
			{"LocalEndpoint/" + size, "ns/op", "rounds of an ADD and a DEL" + inCluster, unlimited, durations},
		}),
		b.goBench(ctx, "./cells/identity/ipcachemaps", "Remote_OnePodOfMany$", []figure{
			{"Remote_OnePodOfMany", "ns/op", "row of ipcache of one changed pod of other nodes, of 20,000", remotePodBudget, durations},
		}),
	)
}

// classes compares the entries of rules about classes of pods in a large cluster with the entries in a small one.
func (b *bench) classes(ctx context.Context) error {
	const test = "Compile_Classes_EntriesDoNotGrowWithIdentities"
	m, failed := runTests(ctx, "./pkg/policy/policycompiler", test+"$")
	for _, class := range []string{"all pods", "the cluster", "the entity cluster", "a namespace", "the namespaces of a team", "all but one namespace"} {
		of := func(identities int) []float64 { // of a rule that allows, and of a rule that denies
			return m.values[test][fmt.Sprintf("entries:%s:%d", strings.ReplaceAll(class, " ", "_"), identities)]
		}
		if len(of(1000)) == 0 || len(of(65_000)) == 0 {
			failed = errors.Join(failed, fmt.Errorf("no entries of a rule about %s in the output of %s:\n%s", class, m.pkg, m.output))
			continue
		}
		few, many := slices.Min(of(1000)), slices.Max(of(65_000))
		b.sheet.Add("entries of a rule about "+class+", 65,000 identities against 1,000", fmt.Sprint(many), fmt.Sprint(few), figures.Of(many, few), classesBudget)
	}
	return failed
}

// labelSets reports the number of identities while label sets are created and no longer used, in virtual time, and the CPU time of a scan for unused ones.
func (b *bench) labelSets(ctx context.Context) error {
	const (
		cell = "./cells/cluster/identitygc"
		test = "Lead_KeepsUpWithManyLabelSets"
		span = ", 600 new label sets a minute for three hours"
	)
	return errors.Join(
		b.goTest(ctx, cell, test+"$", []figure{
			{test, "most", "identities at once" + span, labelSetsBudget, counts("identities")},
			{test, "left", "identities at the end" + span, labelSetsBudget, counts("identities")},
			{test, "writes", "requests that write, for each deleted identity", identityWritesBudget, counts("writes")},
		}),
		b.goBench(ctx, cell, "Round$", []figure{
			{"Round", "ns/round-cpu", "CPU of a scan of 40,000 identities and 20,000 CiliumEndpoints, without the server", unlimited, durations},
		}),
	)
}

// nodeFollower is the benchmark of a cell that follows the nodes, beside 5,000 nodes. One operation is a number of changes of a node.
type nodeFollower struct {
	cell, benchmark string
	changes         float64
}

var nodeFollowers = []nodeFollower{
	{"node/nodelist", "NodeMoves", 1},
	{"node/nodeidallocator", "NodeJoins", 1},
	{"node/nodemaps", "NodeMoves", 1},
	{"node/noderoutes", "NodeJoins/tunnel", 2},
	{"node/nodehealthprober", "NodeMoves", 1},
	{"node/pathtest", "NodeMoves", 1},
	{"datapath/overlay", "NodeMoves", 1},
	{"datapath/masquerademaps", "NodeJoins", 2},
	{"identity/synchostips", "NodeMoves", 1},
	{"identity/ipcachemaps", "Remote_NodeJoins/nodes=5000", 1},
	{"identity/ipcachemaps", "Follower_NodeJoins/nodes=5000", 1},
	{"service/servicecontroller", "NodeMoves", 1}, // beside 10,000 LoadBalancer services
}

// nodesJoin measures each cell that follows the nodes, and their sum, which the budget limits. In the cluster role it counts the lists while nodes join.
func (b *bench) nodesJoin(ctx context.Context) error {
	const each = "one node of " + manyNodes + " joins or moves"
	sum, failed := 0.0, error(nil)
	for _, f := range nodeFollowers {
		name, which := f.benchmark, "^Benchmark"+strings.ReplaceAll(f.benchmark, "/", "$/^")+"$"
		m, err := runBenchmarks(ctx, "./cells/"+f.cell, which)
		if err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		middle, found := m.middle(name, "ns/op")
		if !found {
			failed = errors.Join(failed, fmt.Errorf("no time of %s in the output of %s:\n%s", name, m.pkg, m.output))
			continue
		}
		one := middle / f.changes
		sum += one
		b.report(fmt.Sprintf("%s, %s, %s", each, f.cell, name), durations.show(one), durations.value(one), unlimited)
	}
	if failed == nil { // without one of the cells the sum is too small
		b.report(each+", all these cells, 10,000 LoadBalancer services", durations.show(sum), durations.value(sum), nodeJoinsBudget)
	}
	const allocator, minute = "Allocator_NodesJoin_FewLists", "/1,000_nodes_within_a_minute"
	return errors.Join(failed, b.goTest(ctx, "./cells/cluster/clusterpool", allocator+"$", []figure{
		{allocator + minute, "lists", "lists of CiliumNodes of the cluster role while 1,000 nodes join within a minute", joinListsBudget, counts("lists")},
		{allocator + minute, "pages", "pages of these lists", unlimited, counts("pages")},
	}))
}

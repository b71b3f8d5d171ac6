package main

import "strings"

// fault is a change that breaks a property, and the tests that must fail then.
type fault struct {
	name     string
	about    string
	tier     string // tier of the tests
	changes  []change
	generate string // package to generate again, for faults in C
	kernel   string // kernel series, for the tier kernels
	packages []string
	tests    string // regular expression of test names
}

// command returns the arguments of the go command that runs the tests of a fault, and the folder of the tree to run it in.
func (f fault) command() (dir string, args []string) {
	if f.tier == "kernels" {
		return "", []string{"run", "-trimpath", "./test/kernels", "-kernels", f.kernel, "-packages", strings.Join(f.packages, ","), "-run", f.tests}
	}
	if f.tier == "kube" {
		dir = "test/kube"
	}
	args = []string{"test", "-json", "-trimpath", "-vet=off", "-count=1", "-timeout=10m", "-run", f.tests}
	return dir, append(args, f.packages...)
}

// change replaces a text that occurs exactly once in the file.
type change struct{ file, old, new string }

// one returns a list with a single change.
func one(file, old, new string) []change { return []change{{file, old, new}} }

var faults = []fault{
	{name: "watch-missed", about: "the MTU does not follow the addresses of devices", tier: "hermetic",
		changes:  one("cells/datapath/mtu/controller.go", "r.Watch(watched...)", "r.Watch(c.Devices, c.LocalNode, c.Routes)"),
		packages: []string{"./cells/datapath/mtu"}, tests: "TestScripts"},
	{name: "watch-missed-policy", about: "the maps of endpoints do not follow their policies", tier: "hermetic",
		changes:  one("cells/endpoint/endpointmaps/scope.go", "f.policies.UpTo(txn, changed)", "f.policies.UpTo(txn, statedb.NewWatchSet())"),
		packages: []string{"./cells/endpoint/endpointmaps"}, tests: "TestScripts"},
	{name: "map-entry-left", about: "entries of deleted rows stay in the maps", tier: "hermetic",
		changes:  one("pkg/datapath/mapreconciler/map.go", "return m.remove(m.Key(row))", "return nil"),
		packages: []string{"./cells/endpoint/endpointmaps", "./cells/identity/ipcachemaps"}, tests: "TestScripts"},
	{name: "slot-left", about: "the slot of a deleted endpoint keeps its properties", tier: "hermetic",
		changes:  one("cells/endpoint/endpointmaps/ops.go", "\treturn o.write(slot{id: f.ID})", "\treturn nil"),
		packages: []string{"./cells/endpoint/endpointmaps"}, tests: "TestScripts"},
	{name: "prune-too-early", about: "the kernel's entries are removed before the node is known", tier: "hermetic",
		changes:  one("cells/endpoint/endpointmaps/controller.go", "taken := c.commit(want, marked, complete)", "taken := c.commit(want, marked, true || complete)"),
		packages: []string{"./cells/endpoint/endpointmaps"}, tests: "TestScripts"},
	{name: "device-before-its-addresses", about: "a restart takes the masquerade address from the entry of a device", tier: "hermetic",
		changes:  one("cells/datapath/masquerademaps/controller.go", "\t\tif netdevsComplete {", "\t\tif netdevsComplete || true {"),
		packages: []string{"./cells/datapath/masquerademaps"}, tests: "TestScripts"},
	{name: "link-leaked", about: "links of deleted pods stay", tier: "hermetic",
		changes: one("cells/endpoint/linkreaper/reaper.go", "\tif err != nil || len(members) == 0 {\n\t\treturn 0, err",
			"\tif err != nil || len(members) >= 0 {\n\t\treturn 0, err"),
		packages: []string{"./cells/endpoint/linkreaper"}, tests: "TestScripts"},
	{name: "links-of-lost-state-deleted", about: "links whose state files are lost are deleted under running pods", tier: "hermetic",
		changes:  one("cells/endpoint/linkreaper/orphans.go", "\t\tdelete(stray, index)\n", ""),
		packages: []string{"./cells/endpoint/linkreaper"}, tests: "Test"},
	{name: "quarantine-ignores-flows", about: "an address is allocated again while flows of its previous pod remain", tier: "hermetic",
		changes: one("cells/endpoint/ipamallocator/expiry.go", "if found && a.flows != nil && !conntrack.PassedSince(txn, a.flows, row.Since) {",
			"if found && a.flows != nil && !conntrack.PassedSince(txn, a.flows, row.Since) && false {"),
		packages: []string{"./cells/endpoint/ipamallocator"}, tests: "TestQuarantine"},
	{name: "ledger-not-written", about: "an allocated address is free after a crash", tier: "hermetic",
		changes:  one("cells/endpoint/ipamallocator/ledger.go", "{ return l.store.Write(ledgerName(row.Addr), row) }", "{ return nil }"),
		packages: []string{"./cells/endpoint/ipamallocator"}, tests: "TestRestart|TestNext"},
	{name: "stop-hook-waits-for-ever", about: "the API's stop hook ignores its deadline", tier: "hermetic",
		changes: one("cells/agent/apiserver/drain.go", "context.WithTimeout(context.Background(), within)",
			"context.WithTimeout(context.Background(), 100*within)"),
		packages: []string{"./cells/agent/apiserver"}, tests: "TestDrain"},
	{name: "requests-cut-at-once", about: "requests in progress are aborted when the agent stops", tier: "hermetic",
		changes:  one("cells/agent/apiserver/drain.go", "\tif ended(finishTimeout) {\n\t\treturn nil\n\t}\n", ""),
		packages: []string{"./cells/agent/apiserver"}, tests: "TestDrain"},
	{name: "config-before-readiness", about: "the CNI configuration is written before pods can be attached", tier: "hermetic",
		changes:  one("cells/agent/cniconf/controller.go", "if verdict.Ready() {", "if verdict.Ready() || true {"),
		packages: []string{"./cells/agent/cniconf"}, tests: "TestScripts"},
	{name: "allows-before-denies", about: "an allow entry is in force before its deny entry", tier: "hermetic",
		changes: one("cells/policy/policymaps/write.go", "write := slices.Concat(d.AddedDenies, d.Changed, d.Renamed, d.AddedAllows)",
			"write := slices.Concat(d.AddedAllows, d.AddedDenies, d.Changed, d.Renamed)"),
		packages: []string{"./cells/policy/policymaps"}, tests: "TestScripts"},
	{name: "foreign-route-replaced", about: "a route of another program is taken over", tier: "hermetic",
		changes:  one("cells/datapath/routereconciler/ops.go", "if have.Protocol != desiredroutes.Protocol {\n\t\t\treturn fmt.Errorf(", "if have.Protocol != desiredroutes.Protocol && false {\n\t\t\treturn fmt.Errorf("),
		packages: []string{"./cells/datapath/routereconciler"}, tests: "TestScripts"},
	{name: "each-reflector-waits-alone", about: "reflectors do not notice that a server answers again", tier: "hermetic",
		changes:  one("cells/kubernetes/k8stables/reflectors/retry.go", "\t\tcase <-changed:\n", "\t\tcase <-make(chan struct{}):\n\t\t\t_ = changed\n"),
		packages: []string{"./cells/kubernetes/k8stables/reflectors"}, tests: "TestRetryWhileUnavailable"},
	{name: "count-not-corrected", about: "flows that the collector deletes still count against their endpoint", tier: "hermetic",
		changes:  one("cells/datapath/ctgc/shares.go", "if err := p.kernel.SetCount(uint16(id), want); err != nil {", "if err := error(nil); err != nil {"),
		packages: []string{"./cells/datapath/ctgc"}, tests: "Test"},
	{name: "masqueraded-for-ever", about: "a flow that began under the node's address keeps it when the range of its peer becomes known", tier: "hermetic",
		changes:  one("cells/datapath/ctgc/exclusions.go", "return err == nil && (!found || int32(f.Expires-reply.Expires) > replyTicks), err", "_, _ = reply, found\n\treturn false, err"),
		packages: []string{"./cells/datapath/ctgc"}, tests: "TestScripts"},
	{name: "copy-before-kernel", about: "addresses of nodes in the copy on disk replace newer ones in the maps", tier: "hermetic",
		changes:  one("cells/node/nodemaps/previousrun.go", "for _, addr := range l.addrs[id] {", "for _, addr := range l.addrs[id][:0] {"),
		packages: []string{"./cells/node/nodemaps"}, tests: "TestScripts"},
	{name: "ranges-without-an-endpoint", about: "address ranges of policies that select no endpoint of the node are in the maps", tier: "hermetic",
		changes: one("pkg/policy/policycompiler/policies.go", "\t\tone.filed = r.parts.file(one, &one.Subject)\n",
			"\t\tone.filed = r.parts.file(one, &one.Subject)\n\t\tr.use(one, policy.Egress)\n"),
		packages: []string{"./cells/policy/policymaps"}, tests: "TestPolicies_WithoutALocalEndpoint_TakeNoEntries"},
	{name: "identity-affects-all-endpoints", about: "an identity of pods of other nodes makes a round evaluate all endpoints", tier: "hermetic",
		changes:  one("cells/policy/policymaps/inputs.go", "\tin.resolver.UpsertIdentity(o.ID, o.Labels)\n", "\tin.all = true\n\tin.resolver.UpsertIdentity(o.ID, o.Labels)\n"),
		packages: []string{"./cells/policy/policymaps"}, tests: "TestRemoteIdentity_CostIndependentOfClusterSize"},
	{name: "deletions-limited-per-round", about: "the identity collector deletes in each round only as many identities as it may delete in a minute", tier: "hermetic",
		changes: one("cells/cluster/identitygc/collector.go", "if now.Sub(began) >= c.Config.Interval {",
			"if now.Sub(began) >= c.Config.Interval || round.Deleted >= c.Config.Limit {"),
		packages: []string{"./cells/cluster/identitygc"}, tests: "TestLead_KeepsUpWithManyLabelSets"},
	{name: "ranges-of-agents-first", about: "pod ranges in CiliumNodes, which agents write, have precedence over Nodes", tier: "hermetic",
		changes: one("cells/node/nodelist/resolve.go", "{c.specRanges, c.mainAddresses, c.nodeAddresses, c.ciliumRanges, c.previousRanges}",
			"{c.ciliumRanges, c.previousRanges, c.specRanges, c.mainAddresses, c.nodeAddresses}"),
		packages: []string{"./cells/node/nodelist"}, tests: "TestResolve_HostileCiliumNode"},
	{name: "lists-without-a-limit", about: "each second with a node that joins, the cluster role lists all nodes", tier: "hermetic",
		changes:  one("cells/cluster/clusterpool/allocator.go", "rate.NewLimiter(rate.Every(sustained), burst)", "rate.NewLimiter(rate.Inf, burst)"),
		packages: []string{"./cells/cluster/clusterpool"}, tests: "TestAllocator_NodesJoin_FewLists"},
	{name: "quota-exceeded-by-half", about: "an endpoint gets half as many flows again as its quota", tier: "machine",
		changes:  one("bpf/lib/conntrack.h", "fits = count <= (__s32)ct_share;", "fits = count <= (__s32)(ct_share + ct_share / 2);"),
		generate: "./bpf", packages: []string{"./bpf/tests"}, tests: "TestPrivilegedConntrack_Share"},
	{name: "deny-loses-to-allow", about: "a deny applies only if no entry allows", tier: "machine",
		changes:  one("bpf/lib/policy.h", "\tif (entry->deny) {", "\tif (entry->deny && q->match == MATCH_NONE) {"),
		generate: "./bpf", packages: []string{"./bpf/tests"}, tests: "TestPrivilegedPolicy"},
	{name: "denied-packet-passes-once", about: "the first packet of a denied flow passes, and all later ones are dropped", tier: "machine",
		changes: one("bpf/lib/track.h", "if (v == STEP_EVALUATE && !(v = track_evaluate(skb, flow, self)))",
			"if (v == STEP_EVALUATE && (!(v = track_evaluate(skb, flow, self)) || !flow->known))"),
		generate: "./bpf", packages: []string{"./bpf/tests"}, tests: "TestPrivilegedPolicy"},
	{name: "sender-by-address-alone", about: "a pod of another node uses the connection of the previous owner of its address", tier: "machine",
		changes:  one("bpf/lib/flow.h", "if (flow->tunnelled && ct_end_identity(entry, !own) != flow->tunnelled_identity)", "if (0)"),
		generate: "./bpf", packages: []string{"./bpf/tests"}, tests: "TestPrivilegedVNI"},
	{name: "identity-known-too-long", about: "a VNI is accepted although policies no longer know its identity", tier: "hermetic",
		changes:  one("cells/policy/policymaps/controller.go", "\t\tc.known.remove(id)\n", ""),
		packages: []string{"./cells/policy/policymaps"}, tests: "TestScripts"},
	{name: "open-for-50-ms", about: "each change of an endpoint allows all packets for 50 ms", tier: "node",
		changes: []change{
			{"cells/endpoint/endpointmaps/ops.go", "\t\"net/netip\"\n", "\t\"net/netip\"\n\t\"slices\"\n\t\"time\"\n"},
			{"cells/endpoint/endpointmaps/ops.go", "\terr := o.slots.Put(changed)\n", `	open := slices.Clone(changed)
	for i := range open {
		open[i].facts.PolicyIngress, open[i].facts.PolicyEgress = 1, 1
	}
	err := o.slots.Put(open)
	time.Sleep(50 * time.Millisecond)
	if err == nil {
		err = o.slots.Put(changed)
	}
`}},
		packages: []string{"./test/node"}, tests: "TestPrivilegedPolicy_NoPacketBeforeThePolicy"},
	{name: "half-open-established", about: "a reply establishes a connection before the next packet of its initiator", tier: "node",
		changes: one("bpf/lib/track.h", "return !is_of_responder(flow) && (flow->entry.flags & (CT_REPLIED | CT_RESET)) == CT_REPLIED && !(flow->l4.tcp_flags & TCP_SYN);",
			"return (flow->entry.flags & (CT_REPLIED | CT_RESET)) == CT_REPLIED;"),
		generate: "./bpf", packages: []string{"./test/node"}, tests: "TestPrivilegedHostile_HalfOpenConnectionsAreNotEstablished"},
	{name: "expired-turns-round", about: "the next segment of an expired connection gives it its direction", tier: "node",
		changes: one("bpf/lib/track.h", "flow->entry.flags = flags & (CT_INITIATOR_SECOND | CT_BY_TUNNEL);",
			"flow->entry.flags = (flags & CT_BY_TUNNEL) | (flow->second ? CT_INITIATOR_SECOND : 0);"),
		generate: "./bpf", packages: []string{"./test/node"}, tests: "TestPrivilegedPolicy_Groups/Cilium/RevokedClientsStayOut"},
	{name: "ranges-for-new-flows-alone", about: "clients outside of narrowed source ranges keep their connections", tier: "node",
		changes:  one("cells/datapath/ctgc/served.go", "j.ranged, j.frontend = f,", "j.ranged, j.frontend = nil,"),
		packages: []string{"./test/node"}, tests: "TestPrivilegedService_Groups/sockets/SourceRangesNarrow"},
	{name: "repair-missing", about: "drift is detected and not repaired", tier: "node",
		changes:  one("pkg/drift/drift.go", "if len(found) == 0 {", "if len(found) >= 0 {"),
		packages: []string{"./test/node"}, tests: "TestPrivilegedRepair_DamageWithoutEvent"},
	{name: "host-end-not-awaited", about: "ADD returns before the kernel can send what the node answers", tier: "machine",
		changes:  one("cni/usable.go", "{{\"on the node\", a.spec.hostName, a.link.index, a.host}, ", "{"),
		packages: []string{"./cni"}, tests: "TestPrivilegedAdd_WaitsForTheHostEnd"},
	{name: "flag-of-newer-kernels", about: "routes are looked up with a flag that Linux 6.10 brought", tier: "kernels",
		changes:  one("bpf/lib/route.h", "bpf_fib_lookup(skb, &fib, sizeof(fib), 0)", "bpf_fib_lookup(skb, &fib, sizeof(fib), 1U << 5)"),
		generate: "./bpf", kernel: "6.1", packages: []string{"bpf/tests"}, tests: "TestPrivilegedReal_(Services|StreamsThroughTranslations)$"},
	{name: "tcx-taken-for-granted", about: "every kernel is reported to have tcx", tier: "kernels",
		changes: one("cells/datapath/loader/tcx.go", "found := errors.Is(err, unix.ENODEV)", "found := true || errors.Is(err, unix.ENODEV)"),
		kernel:  "6.1", packages: []string{"test/node"}, tests: "TestPrivilegedTraffic_BetweenPodsNodeAndOutside"},
	{name: "agents-write-other-nodes", about: "the admission policy lets an agent write objects of other nodes", tier: "kube",
		changes:  one("pkg/install/manifests/admission.yaml", "variables.node == '' || variables.owned", "variables.node == '' || variables.owned || true"),
		packages: []string{"./install"}, tests: "TestPrivilegedInstall"},
	{name: "dead-server-stays-in-use", about: "the client does not leave an API server that died", tier: "kube",
		changes:  one("pkg/kubernetes/kubeapi/servers.go", "s.active = (i + 1) % len(s.rows)", "s.active = i"),
		packages: []string{"./waggle"}, tests: "TestPrivilegedServers"},
}

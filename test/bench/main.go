// Command bench measures Waggle and a control in one run and prints both side by side, with budgets. It interleaves rounds of both sides and compares
// medians, because absolute times on a shared machine are not comparable. Documented times are the exception: each is measured alone, and its budget limits
// the maximum over all rounds.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/waggle-net/waggle/test/bench/figures"
	"github.com/waggle-net/waggle/test/nodekit"
)

// Exit codes.
const (
	failed       = 1 // a part could not be measured
	budgetMissed = 2 // with -strict
)

func main() {
	b := &bench{}
	flag.StringVar(&b.bin, "bin", "bin", "folder with waggle-agent, waggle-cni and waggle")
	flag.StringVar(&b.plugins, "reference", "/usr/lib/cni", "folder with the reference plugins ptp and host-local")
	flag.IntVar(&b.rounds, "rounds", 30, "rounds of each measurement; measurements that take seconds have fewer")
	flag.StringVar(&b.only, "only", "", "measure only the parts whose name contains this text, such as promises or traffic")
	flag.StringVar(&b.output, "o", "table", "output format: table or json")
	flag.BoolVar(&b.strict, "strict", false, "exit with code 2 when a budget is missed")
	list := flag.Bool("list", false, "print the parts with their budgets, and measure nothing")
	flag.Parse()
	if flag.NArg() > 0 || b.output != "table" && b.output != "json" || b.rounds < 1 {
		flag.Usage()
		os.Exit(failed)
	}
	if *list {
		b.list()
		return
	}
	os.Exit(nodekit.Contain(b.main))
}

// main runs in a separate process, so that an interrupted benchmark leaves no resources on the machine.
func (b *bench) main() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := b.run(ctx)
	write := b.sheet.WriteTable
	if b.output == "json" {
		write = b.sheet.WriteJSON
	}
	if err := errors.Join(err, write(os.Stdout)); err != nil {
		fmt.Fprintf(os.Stderr, "the benchmark failed: %v\n", err)
		return failed
	}
	if b.strict && len(b.sheet.Missed()) > 0 {
		return budgetMissed
	}
	return 0
}

// bench is one run.
type bench struct {
	bin, plugins string
	rounds       int
	only, output string
	strict       bool
	sheet        figures.Sheet
}

// part is one measurement with its own rows.
type part struct {
	name    string
	do      func(context.Context) error
	budgets []figures.Limit
}

func (b *bench) parts() []part {
	return append([]part{
		{"attaching and detaching pods", b.attach, []figures.Limit{addIPv4Budget, addDualBudget, addCrowdedBudget, delBudget, addBurstBudget}},
		{"traffic between pods", b.traffic, []figures.Limit{requestBudget, oneRuleBudget, manyRulesBudget}},
		{"traffic between nodes", b.betweenNodes, []figures.Limit{nativeTCPBudget, tunnelTCPBudget, tunnelUDPBudget, underlayIPv6Budget, tunnelBulkBudget}},
		{"addresses that change", b.addressChanges, []figures.Limit{changesBudget, changesCPUBudget}},
		{"verdicts of changed policies", b.verdicts, []figures.Limit{verdictBudget, mapMemoryBudget}},
		{"the agent itself", b.agent, []figures.Limit{coldStartBudget, residentBudget, restCPUBudget}},
		{"5,000 nodes", b.largeCluster, []figures.Limit{nodeJoinsBudget, syncBudget, syncKernelBudget, routesBudget, joinBudget, podMemoryBudget, largeTrafficBudget, largeRestBudget}},
		{"restoring endpoints", b.restore, []figures.Limit{restoreBudget}},
		{"programs", b.programs, []figures.Limit{instructionsBudget, stackBudget, establishedBudget, oneSidedBudget, packetBudget, newFlowBudget}},
		{"the policy compiler", b.compiler, []figures.Limit{resolveBudget, oneIdentityBudget}},
		{"policies of a large cluster", b.largePolicies, []figures.Limit{unusedPoliciesBudget, classesBudget, remotePodBudget}},
		{"label sets that come and go", b.labelSets, []figures.Limit{labelSetsBudget, identityWritesBudget}},
		{"nodes that join", b.nodesJoin, []figures.Limit{nodeJoinsBudget, joinListsBudget}},
		{"maps of services", b.serviceMaps, []figures.Limit{servicesBudget, serviceHeapBudget, serviceChangeBudget, sharedBackendBudget, largeServiceBudget}},
		{"changes of services", b.serviceChanges, []figures.Limit{sharedBackendBudget, sliceEventBudget, largeServiceBudget}},
		{"connections through services", b.services, []figures.Limit{iptablesBudget, crowdConnectBudget, throughBudget}},
		{"sizes", b.sizes, []figures.Limit{agentSizeBudget, pluginSizeBudget}},
	}, b.promises()...)
}

// list prints the parts.
func (b *bench) list() {
	table := tabwriter.NewWriter(os.Stdout, 2, 8, 2, ' ', 0)
	fmt.Fprintln(table, "PART\tBUDGETS\t")
	for _, p := range b.parts() {
		var budgets []string
		for _, limit := range p.budgets {
			budgets = append(budgets, limit.String())
		}
		fmt.Fprintf(table, "%s\t%s\t\n", p.name, strings.Join(budgets, ", "))
	}
	_ = table.Flush()
}

// run measures all parts. A failing part does not affect the rows of others.
func (b *bench) run(ctx context.Context) (failures error) {
	chosen := slices.DeleteFunc(b.parts(), func(p part) bool { return !strings.Contains(p.name, b.only) })
	if len(chosen) == 0 {
		return fmt.Errorf("no part has a name with %q in it; -list prints the names", b.only)
	}
	for _, p := range chosen {
		b.sheet.Begin(p.name)
		begin := time.Now()
		err := ctx.Err()
		if err == nil {
			err = p.do(ctx)
		}
		if err != nil {
			failures = errors.Join(failures, fmt.Errorf("%s: %w", p.name, err))
			continue
		}
		fmt.Fprintf(os.Stderr, "measured %s in %.0f s\n", p.name, time.Since(begin).Seconds())
	}
	return failures
}

// compare reports two medians and their ratio, which the budget limits.
func (b *bench) compare(what string, ours, control []time.Duration, budget figures.Limit) {
	o, c := median(ours), median(control)
	b.sheet.Add(what, show(o), show(c), figures.Of(float64(o), float64(c)), budget)
}

// report reports a figure that has no control.
func (b *bench) report(what, shown string, value figures.Value, budget figures.Limit) {
	b.sheet.Add(what, shown, "", value, budget)
}

func median(values []time.Duration) time.Duration { return percentile(values, 50) }

func percentile(values []time.Duration, p int) time.Duration {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[(len(sorted)-1)*p/100]
}

func show(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return fmt.Sprintf("%.1f us", float64(d.Nanoseconds())/1e3)
	case d < time.Second:
		return fmt.Sprintf("%.2f ms", float64(d.Microseconds())/1e3)
	}
	return fmt.Sprintf("%.2f s", d.Seconds())
}

// timed measures one call.
func timed(f func() error) (time.Duration, error) {
	begin := time.Now()
	err := f()
	return time.Since(begin), err
}

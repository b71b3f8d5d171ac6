// Command bench measures Waggle against a control in one run and prints both side by side, with the budget where there
// is one. Rounds of both sides are interleaved and medians taken, because absolute times of a shared machine mean little.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/waggle-net/waggle/test/nodekit"
)

func main() {
	bin := flag.String("bin", "bin", "folder with waggle-agent, waggle-cni and waggle")
	plugins := flag.String("reference", "/usr/lib/cni", "folder with the reference plugins ptp and host-local")
	rounds := flag.Int("rounds", 30, "rounds of each measurement")
	only := flag.String("only", "", "measure only the parts whose name holds this text, such as traffic or polic")
	flag.Parse()
	b := &bench{bin: *bin, plugins: *plugins, rounds: *rounds, only: *only, table: tabwriter.NewWriter(os.Stdout, 2, 8, 2, ' ', 0)}
	os.Exit(nodekit.Contain(b.main))
}

// main runs as a process of its own, so that nothing of an interrupted benchmark stays on the machine.
func (b *bench) main() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	fmt.Fprintln(b.table, "WHAT\tWAGGLE\tCONTROL\tRATIO\tBUDGET\t")
	err := b.run(ctx)
	_ = b.table.Flush()
	if err != nil {
		fmt.Fprintf(os.Stderr, "the benchmark failed: %v\n", err)
		return 1
	}
	return 0
}

// bench is one run.
type bench struct {
	bin, plugins string
	rounds       int
	only         string
	table        *tabwriter.Writer
}

func (b *bench) run(ctx context.Context) error {
	for _, part := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"attaching and detaching pods", b.attach},
		{"traffic between pods", b.traffic},
		{"verdicts of changed policies", b.verdicts},
		{"attaching while the agent restarts", b.restart},
		{"the agent itself", b.agent},
		{"restoring endpoints", b.restore},
		{"programs", b.programs},
		{"the policy compiler", b.compiler},
		{"maps of services", b.serviceMaps},
		{"connections through services", b.services},
		{"sizes", b.sizes},
	} {
		if !strings.Contains(part.name, b.only) {
			continue
		}
		begin := time.Now()
		if err := part.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
		fmt.Fprintf(os.Stderr, "measured %s in %.0f s\n", part.name, time.Since(begin).Seconds())
	}
	return nil
}

// compare prints two medians and their ratio. A budget is text, so that a reader judges and no test fails over it.
func (b *bench) compare(what string, ours, control []time.Duration, budget string) {
	o, c := median(ours), median(control)
	fmt.Fprintf(b.table, "%s\t%s\t%s\t%.2f\t%s\t\n", what, show(o), show(c), float64(o)/float64(c), budget)
}

// report prints a figure that has no control.
func (b *bench) report(what, value, budget string) {
	fmt.Fprintf(b.table, "%s\t%s\t-\t-\t%s\t\n", what, value, budget)
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
	if d < time.Millisecond {
		return fmt.Sprintf("%.1f us", float64(d.Nanoseconds())/1e3)
	}
	return fmt.Sprintf("%.2f ms", float64(d.Microseconds())/1e3)
}

// timed measures one call.
func timed(f func() error) (time.Duration, error) {
	begin := time.Now()
	err := f()
	return time.Since(begin), err
}

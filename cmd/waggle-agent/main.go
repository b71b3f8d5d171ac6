// Command waggle-agent is the agent of a node or, with --role=cluster, the control plane for the whole cluster. This package parses options, builds the hive
// of the role from package daemon, runs the hive until a signal, limits the memory of its heap, and selects the exit code; the cells implement all other
// functions.
package main

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"

	upstream "github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/bootlog"
	"github.com/waggle-net/waggle/pkg/config"
	"github.com/waggle-net/waggle/pkg/shellwire"
	"github.com/waggle-net/waggle/pkg/version"
)

func main() {
	runtime.MemProfileRate = 0 // the cell pprof starts the profile of allocations
	os.Exit(run(os.Args[1:], os.Environ(), os.Stdout, os.Stderr))
}

// run is main with arguments, environment and outputs as parameters.
func run(args, environ []string, stdout, stderr io.Writer) int {
	a := &agent{environ: environ, stdout: stdout, stderr: stderr, recorder: bootlog.NewRecorder()}
	defer a.boundHeap()() // early: it also sets the growth of the heap during the start
	bpf.ReadAhead()
	if err := a.build(args); err != nil {
		fmt.Fprintln(stderr, "waggle-agent:", err)
		return 1
	}
	root := a.rootCommand()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	if err := root.Execute(); err != nil {
		fmt.Fprintln(stderr, "waggle-agent:", err)
		return 1
	}
	return 0
}

// agent holds the state that the commands share.
type agent struct {
	environ        []string
	stdout, stderr io.Writer
	role           string         // determined before all other fields
	flags          *pflag.FlagSet // of the role
	hive           *upstream.Hive
	recorder       *bootlog.Recorder
	config         config.Effective // set before the hive is populated
}

// outside is a cell of each role that provides objects which exist before the hive. It follows the other cells.
func (a *agent) outside(role string) cell.Cell {
	provide := cell.Provide(
		func() *bootlog.Recorder { return a.recorder },
		func() config.Effective { return a.config },
		func() shellwire.HivePrinter { // for the command "hive" of the agent's shell
			return func(w io.Writer) error { return a.hive.PrintObjects(w, slog.New(slog.DiscardHandler)) }
		},
	)
	if role == config.RoleCluster {
		return provide // the agent was started without capabilities
	}
	return cell.Group(cell.Invoke(a.dropCapabilities), provide)
}

func (a *agent) rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:               "waggle-agent",
		Short:             a.short(),
		Args:              cobra.NoArgs,
		SilenceUsage:      true,
		SilenceErrors:     true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
		RunE:              func(cmd *cobra.Command, _ []string) error { return a.serve(cmd) },
	}
	root.PersistentFlags().AddFlagSet(a.flags)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return config.FlagError(cmd.Flags(), err) })
	root.AddCommand(a.hiveCommand(), a.setupCommand(), versionCommand(a.stdout))
	return root
}

func versionCommand(stdout io.Writer) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		Run:   func(*cobra.Command, []string) { fmt.Fprintln(stdout, version.Long("waggle-agent")) },
	}
}

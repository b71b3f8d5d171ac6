// Command waggle-agent is the agent that runs on each node. This package parses options, builds the hive from
// daemon.Agent, runs it until a signal and chooses the exit code; everything else is in cells.
package main

import (
	"fmt"
	"io"
	"log/slog"
	"os"

	upstream "github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/spf13/cobra"

	"github.com/waggle-net/waggle/daemon"
	"github.com/waggle-net/waggle/pkg/bootlog"
	"github.com/waggle-net/waggle/pkg/config"
	"github.com/waggle-net/waggle/pkg/hive"
	"github.com/waggle-net/waggle/pkg/shell"
	"github.com/waggle-net/waggle/pkg/version"
)

func main() {
	os.Exit(run(os.Args[1:], os.Environ(), os.Stdout, os.Stderr))
}

// run is main with its surroundings as arguments.
func run(args, environ []string, stdout, stderr io.Writer) int {
	a := &agent{environ: environ, stdout: stdout, stderr: stderr, recorder: bootlog.NewRecorder()}
	var err error
	if a.hive, err = hive.Build(daemon.Agent, a.outside()); err != nil {
		fmt.Fprintln(stderr, "waggle-agent: the agent cannot be built:", err)
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

// agent is what the commands share.
type agent struct {
	environ        []string
	stdout, stderr io.Writer
	hive           *upstream.Hive
	recorder       *bootlog.Recorder
	config         config.Effective // set before the hive is populated
}

// outside provides to the cells what exists before the hive does.
func (a *agent) outside() cell.Cell {
	return cell.Provide(
		func() *bootlog.Recorder { return a.recorder },
		func() config.Effective { return a.config },
		func() shell.HivePrinter { // for the command "hive" of the agent's shell
			return func(w io.Writer) error { return a.hive.PrintObjects(w, slog.New(slog.DiscardHandler)) }
		},
	)
}

func (a *agent) rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:               "waggle-agent",
		Short:             "Run the node networking agent",
		Args:              cobra.NoArgs,
		SilenceUsage:      true,
		SilenceErrors:     true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
		RunE:              func(cmd *cobra.Command, _ []string) error { return a.serve(cmd) },
	}
	flags := root.PersistentFlags()
	config.AddFlags(flags)
	a.hive.RegisterFlags(flags)
	config.AddForeign(flags)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return config.FlagError(cmd.Flags(), err) })
	root.AddCommand(a.hiveCommand(), versionCommand(a.stdout))
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

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/waggle-net/waggle/pkg/agentclient"
	"github.com/waggle-net/waggle/pkg/printable"
	"github.com/waggle-net/waggle/pkg/shellwire"
)

// Exit codes.
const (
	exitOK = iota
	exitFailed
	exitUsage
	exitUnreachable
)

// app is one run of the command.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	host           string // as typed
	output         string // "", "json" or "yaml"
	timeout        time.Duration
	shellPath      string // empty means the socket beside the API's
}

// Run runs the command and returns its exit code.
func Run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	a := &app{stdin: stdin, stdout: stdout, stderr: stderr}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // the second signal ends a command that does not watch its context, such as one that reads a pipe
	root := a.root()
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err != nil && !errors.As(err, new(silent)) {
		complain(stderr, err)
	}
	return exitCode(err)
}

// complain prints an error. It prints joined errors on a line each, at most 20 lines.
func complain(w io.Writer, err error) {
	const most = 20
	lines := strings.Split(err.Error(), "\n")
	for _, line := range lines[:min(len(lines), most)] {
		fmt.Fprintln(w, "waggle:", printable.Text(line))
	}
	if more := len(lines) - most; more > 0 {
		fmt.Fprintln(w, "waggle: and", more, "more")
	}
}

// silent is an error that was already printed.
type silent struct{ error }

// usage is a command line error.
type usage struct{ error }

func exitCode(err error) int {
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, new(usage)):
		return exitUsage
	case errors.Is(err, agentclient.ErrUnreachable), errors.Is(err, agentclient.ErrNoAnswer),
		errors.Is(err, shellwire.ErrUnreachable), errors.Is(err, shellwire.ErrNoAnswer):
		return exitUnreachable
	}
	return exitFailed
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:               "waggle",
		Short:             "Show the state of the Waggle agent on this node",
		SilenceErrors:     true,
		SilenceUsage:      true,
		DisableAutoGenTag: true,
		PersistentPreRunE: func(*cobra.Command, []string) error { return a.checkFlags() },
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usage{err} })
	flags := root.PersistentFlags()
	flags.StringVarP(&a.host, "host", "H", "", "Socket of the agent, as unix://PATH or PATH (environment "+agentclient.SocketEnv+
		"; default "+agentclient.DefaultSocket+")")
	flags.DurationVar(&a.timeout, "timeout", 30*time.Second, "Timeout of an answer; 0 means none")
	root.AddCommand(
		a.statusCommand(), a.endpointCommand(), a.identityCommand(), a.policyCommand(), a.serviceCommand(), a.bpfCommand(), a.ipCommand(), a.ipamCommand(), a.mapCommand(), a.nodeCommand(), a.nodeIDCommand(), a.healthCommand(), a.configCommand(),
		a.dbCommand(), a.shellCommand(), a.bootstrapCommand(), a.monitorCommand(), a.dropsCommand(), a.installCommand(), a.inventoryCommand(), a.cleanupCommand(),
		a.versionCommand(),
	)
	strictArguments(root)
	return root
}

// strictArguments reports wrong arguments, and a group without a subcommand, as command line errors.
func strictArguments(cmd *cobra.Command) {
	if check := cmd.Args; check != nil {
		cmd.Args = func(c *cobra.Command, args []string) error {
			if err := check(c, args); err != nil {
				return usage{fmt.Errorf("%s: %w", c.CommandPath(), err)}
			}
			return nil
		}
	}
	if cmd.HasSubCommands() && !cmd.Runnable() {
		cmd.RunE = func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return c.Help()
			}
			return usage{fmt.Errorf("%s: no such command %q; see %s --help", c.CommandPath(), args[0], c.CommandPath())}
		}
		cmd.Args = cobra.ArbitraryArgs
	}
	for _, sub := range cmd.Commands() {
		strictArguments(sub)
	}
}

func (a *app) checkFlags() error {
	switch a.output {
	case "", "json", "yaml":
		return nil
	}
	return usage{fmt.Errorf("-o %q: use json or yaml", a.output)}
}

// withOutput adds the flag -o.
func (a *app) withOutput(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().StringVarP(&a.output, "output", "o", "", "Output format for programs: json or yaml")
	return cmd
}

func (a *app) socket() string { return agentclient.SocketPath(a.host) }

// beside returns the path of a socket in the directory of the agent's API socket.
func (a *app) beside(name string) string { return filepath.Join(filepath.Dir(a.socket()), name) }

// ask calls do with a client and a context with a timeout.
func (a *app) ask(cmd *cobra.Command, do func(context.Context, *agentclient.Client) error) error {
	ctx := cmd.Context()
	if a.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, a.timeout)
		defer cancel()
	}
	c := agentclient.New(a.socket())
	return do(ctx, c)
}

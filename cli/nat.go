package cli

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/waggle-net/waggle/pkg/datapath/servicemap"
)

func (a *app) lbCommand() *cobra.Command {
	group := &cobra.Command{Use: "lb", Short: "Show the services of the datapath"}
	list := &cobra.Command{
		Use: "list", Short: "List the frontends in the kernel, each with its backends", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			only, err := servicemap.ChosenList(cmd.Flags().GetBool)
			if err != nil {
				return usage{err}
			}
			args := []string{"lb/list"}
			if only != "" {
				args = append(args, "--"+only)
			}
			return a.shellValue(cmd, args)
		},
	}
	for _, l := range servicemap.Lists() {
		list.Flags().Bool(l.Name, false, l.Usage)
	}
	group.AddCommand(a.withOutput(list))
	return a.withShellSocket(group)
}

func (a *app) natCommand() *cobra.Command {
	group := &cobra.Command{Use: "nat", Short: "Show and delete translated flows of the datapath"}
	group.AddCommand(
		a.natSubcommand("list", "List translated flows", "nat/list", "  waggle bpf nat list --service shop/web\n  waggle bpf nat list --pod default/web -o json"),
		a.natSubcommand("top", "List endpoints by the number of their translated flows, with the used part of their quota, and destinations by the number of their used source ports", "nat/top", ""),
		a.natSubcommand("flush", "Delete translated flows: connections break, the next datagram creates a new flow", "nat/flush",
			"  waggle bpf nat flush --service shop/web\n  waggle bpf nat flush --all"),
	)
	return a.withShellSocket(group)
}

// natSubcommand runs a command of the agent's shell with a filter.
func (a *app) natSubcommand(use, short, command, example string) *cobra.Command {
	var f ctFilter
	var service string
	cmd := &cobra.Command{
		Use: use, Short: short, Args: cobra.NoArgs, Example: example,
		RunE: func(cmd *cobra.Command, _ []string) error {
			args := append([]string{command}, f.args()...)
			if service != "" {
				args = append(args, "--service="+service)
			}
			return a.shellValue(cmd, args)
		},
	}
	a.filterFlags(cmd, &f)
	cmd.Flags().StringVar(&service, "service", "", "Select flows of this service, as NAMESPACE/NAME")
	return a.withOutput(cmd)
}

// shellValue runs a command of the agent's shell and prints its text, or its JSON for -o.
func (a *app) shellValue(cmd *cobra.Command, args []string) error {
	if a.output == "" {
		return a.shellRun(cmd, args...)
	}
	text, err := a.shellText(cmd, append(args, "--json")...)
	if err != nil {
		return err
	}
	var value any
	if err := json.Unmarshal([]byte(text), &value); err != nil {
		return fmt.Errorf("read the output of %s: %w", args[0], err)
	}
	return a.show(value, nil)
}

// filterFlags adds the flags of commands that select flows.
func (a *app) filterFlags(cmd *cobra.Command, f *ctFilter) {
	cmd.Flags().Uint16Var(&f.endpoint, "endpoint", 0, "Select flows of the endpoint with this id")
	cmd.Flags().StringVar(&f.pod, "pod", "", "Select flows of this pod, as NAMESPACE/NAME")
	cmd.Flags().StringVar(&f.address, "address", "", "Select flows from or to this address")
	if cmd.Name() == "flush" {
		cmd.Flags().BoolVar(&f.all, "all", false, "Select all flows")
	}
}

package cli

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

func (a *app) lbCommand() *cobra.Command {
	group := &cobra.Command{Use: "lb", Short: "Show the services that the datapath balances"}
	lists := []struct {
		name, usage string
		given       bool
	}{
		{name: "frontends", usage: "List the frontends without their backends"},
		{name: "backends", usage: "List the backends alone"},
		{name: "revnat", usage: "List the address that each id of a frontend stands for, which answers get"},
		{name: "source-ranges", usage: "List the prefixes whose clients alone may use a frontend"},
	}
	list := &cobra.Command{
		Use: "list", Short: "List the frontends that the kernel has, each with its backends", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			args := []string{"lb/list"}
			for _, l := range lists {
				if l.given {
					args = append(args, "--"+l.name)
				}
			}
			if len(args) > 2 {
				return usage{fmt.Errorf("give one of %s", strings.Join(args[1:], " and "))}
			}
			return a.shellValue(cmd, args)
		},
	}
	for i := range lists {
		list.Flags().BoolVar(&lists[i].given, lists[i].name, false, lists[i].usage)
	}
	group.AddCommand(a.withOutput(list))
	return a.withShellSocket(group)
}

func (a *app) natCommand() *cobra.Command {
	group := &cobra.Command{Use: "nat", Short: "Show and forget the translated flows that the datapath remembers"}
	group.AddCommand(
		a.natSubcommand("list", "List translated flows", "nat/list", "  waggle bpf nat list --service shop/web\n  waggle bpf nat list --pod default/web -o json"),
		a.natSubcommand("top", "List endpoints by the number of their translated flows, with how much of their share is used up, and targets by the ports that are used up for them", "nat/top", ""),
		a.natSubcommand("flush", "Forget translated flows: connections break, datagrams find their way anew", "nat/flush",
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
	cmd.Flags().StringVar(&service, "service", "", "Only flows of this service, as NAMESPACE/NAME")
	return a.withOutput(cmd)
}

// shellValue runs a command of the agent's shell, which prints text, or JSON for -o.
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
		return fmt.Errorf("read what the agent said to %s: %w", args[0], err)
	}
	return a.show(value, nil)
}

// filterFlags are those of commands that are about flows.
func (a *app) filterFlags(cmd *cobra.Command, f *ctFilter) {
	cmd.Flags().Uint16Var(&f.endpoint, "endpoint", 0, "Only flows of the endpoint with this id")
	cmd.Flags().StringVar(&f.pod, "pod", "", "Only flows of this pod, as NAMESPACE/NAME")
	cmd.Flags().StringVar(&f.address, "address", "", "Only flows from or to this address")
	if cmd.Name() == "flush" {
		cmd.Flags().BoolVar(&f.all, "all", false, "All flows")
	}
}

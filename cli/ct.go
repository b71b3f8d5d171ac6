package cli

import (
	"strconv"

	"github.com/spf13/cobra"
)

// ctFilter selects the flows of a command. The fields are the flags' unparsed text; the agent validates them.
type ctFilter struct {
	endpoint     uint16
	pod, address string
	all          bool
}

func (a *app) ctCommand() *cobra.Command {
	group := &cobra.Command{Use: "ct", Short: "Show and delete flows of the datapath"}
	group.AddCommand(
		a.ctSubcommand("list", "List flows", "ct/list", "  waggle bpf ct list --pod default/web\n  waggle bpf ct list --address 10.244.1.7 -o json"),
		a.ctSubcommand("top", "List endpoints by the number of their flows, with packets and bytes of both directions; COUNTED is the number that counts against their quota", "ct/top", ""),
		a.ctSubcommand("flush", "Delete flows: policies evaluate the next packet of each as the first one", "ct/flush",
			"  waggle bpf ct flush --pod default/web\n  waggle bpf ct flush --all"),
	)
	return a.withShellSocket(group)
}

// ctSubcommand runs a command of the agent's shell with a filter.
func (a *app) ctSubcommand(use, short, command, example string) *cobra.Command {
	var f ctFilter
	cmd := &cobra.Command{
		Use: use, Short: short, Args: cobra.NoArgs, Example: example,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.shellValue(cmd, append([]string{command}, f.args()...))
		},
	}
	a.filterFlags(cmd, &f)
	return a.withOutput(cmd)
}

func (f ctFilter) args() (args []string) {
	if f.endpoint != 0 {
		args = append(args, "--endpoint="+strconv.Itoa(int(f.endpoint)))
	}
	if f.pod != "" {
		args = append(args, "--pod="+f.pod)
	}
	if f.address != "" {
		args = append(args, "--address="+f.address)
	}
	if f.all {
		args = append(args, "--all")
	}
	return args
}

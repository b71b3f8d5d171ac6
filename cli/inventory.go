package cli

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/waggle-net/waggle/pkg/inventory"
)

const inventoryHelp = `List everything of Waggle on this machine: links, routes, filters, the nftables table, pinned maps and programs, kernel
settings that were changed, files. Each line says who makes the object and how it is known to be ours; what cannot be proven
ours is not listed. "waggle cleanup" removes exactly this.

The kernel and the disk are asked, not the agent, so it does not matter whether one runs. Give the options of the agent that say
where it keeps things, or its --config-dir. Run it as root, in the network namespace of the agent.`

func (a *app) inventoryCommand() *cobra.Command {
	return a.withOutput(withPaths(&cobra.Command{
		Use: "inventory", Short: "List everything of Waggle on this machine, with the proof that it is ours", Long: inventoryHelp, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			m, err := machine(cmd)
			if err != nil {
				return err
			}
			defer m.Close()
			objects, err := m.List()
			return a.shown(objects, err)
		},
	}))
}

// shown prints the objects that were found, even if err is not nil, and returns err.
func (a *app) shown(objects []inventory.Object, err error) error {
	if objects == nil {
		objects = []inventory.Object{} // encodes as a list in JSON
	}
	return errors.Join(a.show(objects, func(w io.Writer) {
		if len(objects) == 0 && err == nil {
			fmt.Fprintln(w, "There is nothing of Waggle.")
		}
		objectsText(w, objects)
	}), err)
}

func objectsText(w io.Writer, objects []inventory.Object) {
	if len(objects) == 0 {
		return
	}
	rows := make([][]string, 0, len(objects))
	for _, o := range objects {
		rows = append(rows, []string{o.Kind, o.Name, o.Owner, o.Proof, o.Note})
	}
	table(w, []string{"KIND", "NAME", "OWNER", "PROOF", "NOTE"}, rows)
}

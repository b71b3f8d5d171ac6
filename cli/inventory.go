package cli

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/waggle-net/waggle/pkg/inventory"
)

const inventoryHelp = `List all objects of Waggle on this machine: links, routes, filters, the nftables table, pinned maps and programs, kernel
settings that were changed, files. Each line names the owner of the object and the proof of ownership; objects without such a
proof are not listed. "waggle cleanup" removes exactly these objects.

The command reads the kernel and the disk and does not call the agent, which need not run. Set the path options of the agent
or its --config-dir. Run the command as root, in the network namespace of the agent.`

func (a *app) inventoryCommand() *cobra.Command {
	return a.withOutput(withPaths(&cobra.Command{
		Use: "inventory", Short: "List all objects of Waggle on this machine, with the proof of ownership", Long: inventoryHelp, Args: cobra.NoArgs,
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
			fmt.Fprintln(w, "This machine has no objects of Waggle.")
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

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/waggle-net/waggle/pkg/inventory"
)

const cleanupHelp = `Remove everything that "waggle inventory" lists, and restore kernel settings and CNI configurations.

Stop the agent and its setup first. While pods are attached nothing is removed: runtimes need the plugin to detach them, so
delete or drain them first; their deletion works without the agent. --with-pods disconnects them instead, for a machine that is about to
be reset: pods that are deleted afterwards stay Terminating until another network plugin is installed or the runtime is reset.

Objects that cannot be removed are reported, and the others are removed. Run the command again then, and also if it was killed
or interrupted.`

const cleanupExamples = `  waggle cleanup --dry-run
  waggle cleanup
  waggle cleanup --config-dir /etc/waggle -o json`

func (a *app) cleanupCommand() *cobra.Command {
	var withPods, dryRun, stay bool
	cmd := &cobra.Command{
		Use: "cleanup", Short: "Remove all objects of Waggle from this machine", Long: cleanupHelp, Example: cleanupExamples, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			m, err := machine(cmd)
			if err != nil {
				return err
			}
			defer m.Close()
			if dryRun {
				return a.dryRun(m, withPods)
			}
			if err := a.cleanup(cmd.Context(), m, withPods); err != nil || !stay {
				return err
			}
			<-cmd.Context().Done()
			return nil
		},
	}
	cmd.Flags().BoolVar(&withPods, "with-pods", false, "Disconnect attached pods instead of reporting an error")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "Print the objects that would be removed, and change nothing")
	cmd.Flags().BoolVar(&stay, "stay", false, "After success wait for a signal, as the main process of a DaemonSet's pod")
	return a.withOutput(withPaths(cmd))
}

// dryRun prints the same as the inventory command on stdout. It returns an error for each obstacle to a real run.
func (a *app) dryRun(m *inventory.Machine, withPods bool) error {
	objects, err := m.List()
	return errors.Join(a.shown(objects, err), m.Refusal(withPods))
}

func (a *app) cleanup(ctx context.Context, m *inventory.Machine, withPods bool) error {
	removed, err := m.Cleanup(ctx, withPods)
	if removed == nil {
		removed = []inventory.Object{}
	}
	shown := a.show(removed, func(w io.Writer) {
		objectsText(w, removed)
		fmt.Fprintf(w, "Removed: %d\n", len(removed))
	})
	return errors.Join(err, shown)
}

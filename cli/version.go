package cli

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/waggle-net/waggle/pkg/agentclient"
	"github.com/waggle-net/waggle/pkg/printable"
	"github.com/waggle-net/waggle/pkg/version"
)

// versions is the output of the command as JSON or YAML.
type versions struct {
	Waggle string `json:"waggle"`
	Agent  string `json:"agent,omitempty"` // empty if no agent answers
}

func (a *app) versionCommand() *cobra.Command {
	return a.simple("version", "Print the version of this command and of the agent", func(ctx context.Context, c *agentclient.Client) error {
		v := versions{Waggle: version.String()}
		status, err := c.Status(ctx, true)
		if err == nil {
			v.Agent = status.Agent.Version
		}
		shown := a.show(v, func(w io.Writer) {
			fmt.Fprintln(w, version.Long("waggle"))
			switch {
			case err == nil:
				fmt.Fprintln(w, "waggle-agent", printable.Text(v.Agent))
			case errors.Is(err, agentclient.ErrUnreachable):
				fmt.Fprintln(w, "waggle-agent does not run, or not at", a.socket())
			}
		})
		if errors.Is(err, agentclient.ErrUnreachable) {
			err = nil
		}
		return errors.Join(err, shown)
	})
}

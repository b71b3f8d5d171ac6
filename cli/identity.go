package cli

import (
	"cmp"
	"context"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/waggle-net/waggle/api/v1/models"
	"github.com/waggle-net/waggle/pkg/agentclient"
	"github.com/waggle-net/waggle/pkg/tables/identities"
)

func (a *app) identityCommand() *cobra.Command {
	group := &cobra.Command{Use: "identity", Short: "Show security identities and their labels"}
	list := a.simple("list", "List the identities that this node knows (address ranges of policies: waggle ip list)",
		showRows(a, "identities", []string{"ID", "SOURCE", "LABELS"}, func(i *identities.Identity) []string {
			return []string{strconv.FormatUint(uint64(i.ID), 10), string(i.Source), strings.Join(identities.List(i.Labels), ",")}
		}))
	get := a.withOutput(&cobra.Command{
		Use: "get ID", Short: "Show one identity by its number", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.ask(cmd, func(ctx context.Context, c *agentclient.Client) error {
				return hinted(a.identityGet(ctx, c, args[0]), "identity "+args[0]+" on this node", "waggle identity list")
			})
		},
	})
	group.AddCommand(list, get)
	return group
}

func (a *app) identityGet(ctx context.Context, c *agentclient.Client, id string) error {
	identity, err := c.Identity(ctx, id)
	if err != nil {
		return err
	}
	a.output = cmp.Or(a.output, "json")
	return a.show(identity, func(io.Writer) {})
}

// unmanagedText returns the number of pods without an endpoint and the names of the first few.
func unmanagedText(s *models.StatusResponse) string {
	const most = 5
	text := strconv.Itoa(len(s.UnmanagedPods)) + " run without an endpoint, and must be restarted to use Waggle's network: " +
		strings.Join(s.UnmanagedPods[:min(len(s.UnmanagedPods), most)], ", ")
	if len(s.UnmanagedPods) > most {
		text += " and more; see -o json"
	}
	return text
}

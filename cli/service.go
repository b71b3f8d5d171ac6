package cli

import (
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/waggle-net/waggle/api/v1/models"
	"github.com/waggle-net/waggle/pkg/agentclient"
)

func (a *app) serviceCommand() *cobra.Command {
	group := &cobra.Command{Use: "service", Short: "Show the services of this node"}
	list := a.simple("list", "List the addresses of services, each with its backends", func(ctx context.Context, c *agentclient.Client) error {
		list, err := c.Services(ctx)
		if err != nil {
			return err
		}
		return a.show(list, func(w io.Writer) { serviceText(w, list) })
	})
	get := a.withOutput(&cobra.Command{
		Use: "get ID", Short: "Show one address of a service by its number", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := strconv.ParseInt(args[0], 10, 64)
			if err != nil {
				return usage{fmt.Errorf("service %q: want a number; see waggle service list", args[0])}
			}
			return a.ask(cmd, func(ctx context.Context, c *agentclient.Client) error {
				s, err := c.Service(ctx, id)
				if err != nil {
					return hinted(err, "service "+args[0]+" on this node", "waggle service list")
				}
				return a.show(s, func(w io.Writer) { serviceText(w, []models.Service{*s}) })
			})
		},
	})
	group.AddCommand(list, get)
	return group
}

// serviceText prints a line for each backend. Only a service's first line contains the address.
func serviceText(w io.Writer, list []models.Service) {
	var rows [][]string
	for _, s := range list {
		f, flags := s.Spec.FrontendAddress, s.Spec.Flags
		address := net.JoinHostPort(f.IP, strconv.Itoa(f.Port)) + "/" + f.Protocol
		if f.Scope == models.FrontendAddressScopeInternal {
			address += " (inside)"
		}
		row := []string{strconv.FormatInt(s.Spec.ID, 10), address, string(flags.Type), strings.Trim(flags.Namespace+"/"+flags.Name, "/")}
		if len(s.Spec.BackendAddresses) == 0 {
			rows = append(rows, append(row, "", ""))
		}
		for _, b := range s.Spec.BackendAddresses {
			rows = append(rows, append(row[:4:4], net.JoinHostPort(b.IP, strconv.Itoa(b.Port))+" ("+string(b.State)+")", b.NodeName))
			row = []string{" ", " ", " ", " "}
		}
	}
	table(w, []string{"ID", "FRONTEND", "TYPE", "SERVICE", "BACKEND", "NODE"}, rows)
}

package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/waggle-net/waggle/api/v1/models"
	"github.com/waggle-net/waggle/pkg/agentclient"
	"github.com/waggle-net/waggle/pkg/printable"
)

func (a *app) endpointCommand() *cobra.Command {
	group := &cobra.Command{Use: "endpoint", Aliases: []string{"ep"}, Short: "Show and delete attachments of pods"}
	list := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List all endpoints", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.ask(cmd, a.endpointList)
		},
	}
	get := a.endpointByID("get ID", "Show one endpoint as JSON (or YAML)", func(ctx context.Context, c *agentclient.Client, id string) error {
		endpoint, err := c.Endpoint(ctx, id)
		if err != nil {
			return err
		}
		a.output = cmp.Or(a.output, "json")
		return a.show(endpoint, nil)
	})
	history := a.endpointByID("log ID", "Show the events of an endpoint, newest first", a.endpointLog)
	health := a.endpointByID("health ID", "Show the health of an endpoint", a.endpointHealth)
	labels := a.endpointByID("labels ID", "Show the labels of an endpoint", a.endpointLabels)
	remove := a.endpointByID("delete ID", "Detach an endpoint from the datapath and release its addresses",
		func(ctx context.Context, c *agentclient.Client, id string) error {
			if err := c.DeleteEndpoint(ctx, id); err != nil {
				return err
			}
			return a.show(map[string]string{"deleted": id}, func(w io.Writer) {
				fmt.Fprintf(w, "endpoint %s is deleted; its pod has no network now\n", printable.Text(id))
			})
		})
	group.AddCommand(a.withOutput(list), a.withOutput(get), a.withOutput(history), a.withOutput(health), a.withOutput(labels), a.withOutput(remove))
	return group
}

// endpointByID returns a command with one endpoint as its argument.
func (a *app) endpointByID(use, short string, do func(context.Context, *agentclient.Client, string) error) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Args: cobra.ExactArgs(1),
		Long: short + ".\n\nID is a number, NAMESPACE/POD, or one of cni-attachment-id:CONTAINER:INTERFACE, container-id:CONTAINER,\n" +
			"pod-name:NAMESPACE/POD, cep-name:NAMESPACE/POD, ipv4:ADDRESS, ipv6:ADDRESS.",
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.ask(cmd, func(ctx context.Context, c *agentclient.Client) error {
				return hinted(do(ctx, c, endpointID(args[0])), "endpoint "+args[0]+" on this node", "waggle endpoint list")
			})
		},
	}
}

// endpointID converts an argument to the endpoint id of the API: the prefix of NAMESPACE/POD is optional.
func endpointID(typed string) string {
	if strings.Contains(typed, "/") && !strings.Contains(typed, ":") {
		return "pod-name:" + typed
	}
	return typed
}

// hinted replaces a not-found error with one that contains the missing name and the command that lists existing ones.
func hinted(err error, what, list string) error {
	if errors.Is(err, agentclient.ErrNotFound) {
		return notThere{fmt.Errorf("there is no %s: %s shows the existing ones", what, list)}
	}
	return err
}

// notThere is [agentclient.ErrNotFound] with another text.
type notThere struct{ error }

// Is implements errors.Is.
func (notThere) Is(target error) bool { return target == agentclient.ErrNotFound }

func (a *app) endpointList(ctx context.Context, c *agentclient.Client) error {
	endpoints, err := c.Endpoints(ctx)
	if err != nil {
		return err
	}
	slices.SortFunc(endpoints, func(x, y models.Endpoint) int { return cmp.Compare(x.ID, y.ID) })
	return a.show(endpoints, func(w io.Writer) {
		var rows [][]string
		for _, e := range endpoints {
			ids, net := e.Status.ExternalIdentifiers, e.Status.Networking
			var addr models.AddressPair
			if len(net.Addressing) > 0 {
				addr = net.Addressing[0]
			}
			ingress, egress := enforcement(e.Status.Policy.Realized.PolicyEnabled)
			rows = append(rows, []string{strconv.FormatInt(e.ID, 10), ingress, egress, identityText(e.Status.Identity), string(e.Status.State),
				ids.PodName, addr.Ipv4, addr.Ipv6, net.InterfaceName, short(ids.CNIAttachmentID)})
		}
		table(w, []string{"ID", "POLICY IN", "POLICY OUT", "IDENTITY", "STATE", "POD", "IPV4", "IPV6", "INTERFACE", "ATTACHMENT"}, rows)
		for _, e := range endpoints {
			if e.Status.State == models.EndpointStateInvalid && len(e.Status.Log) > 0 {
				fmt.Fprintf(w, "%d: %s\n", e.ID, printable.Text(e.Status.Log[0].Message))
			}
		}
	})
}

// enforcement reports for each direction whether policies are enforced, in the words of Cilium's list.
func enforcement(enabled models.EndpointPolicyPolicyEnabled) (ingress, egress string) {
	direction, audit := strings.CutPrefix(string(enabled), "audit-")
	on := "Enabled"
	if audit {
		on = "Disabled (Audit)"
	}
	ingress, egress = "Disabled", "Disabled"
	if direction == "ingress" || direction == "both" {
		ingress = on
	}
	if direction == "egress" || direction == "both" {
		egress = on
	}
	return ingress, egress
}

func identityText(id models.Identity) string {
	if len(id.Labels) == 1 {
		return fmt.Sprintf("%d (%s)", id.ID, id.Labels[0])
	}
	return strconv.FormatInt(id.ID, 10)
}

// short shortens long ids in a table; -o json prints the whole ids.
func short(id string) string {
	const most = 24
	if len(id) <= most {
		return id
	}
	return id[:12] + ".." + id[len(id)-10:]
}

func (a *app) endpointLog(ctx context.Context, c *agentclient.Client, id string) error {
	log, err := c.EndpointLog(ctx, id)
	if err != nil {
		return err
	}
	return a.show(log, func(w io.Writer) {
		var rows [][]string
		for _, e := range log {
			rows = append(rows, []string{e.Timestamp, string(e.Code), string(e.State), e.Message})
		}
		table(w, []string{"TIME", "CODE", "STATE", "MESSAGE"}, rows)
	})
}

func (a *app) endpointHealth(ctx context.Context, c *agentclient.Client, id string) error {
	health, err := c.EndpointHealth(ctx, id)
	if err != nil {
		return err
	}
	return a.show(health, func(w io.Writer) {
		table(w, []string{"OVERALL", "DATAPATH", "POLICY", "CONNECTED"},
			[][]string{{string(health.OverallHealth), string(health.BPF), string(health.Policy), strconv.FormatBool(health.Connected)}})
	})
}

func (a *app) endpointLabels(ctx context.Context, c *agentclient.Client, id string) error {
	labels, err := c.EndpointLabels(ctx, id)
	if err != nil {
		return err
	}
	return a.show(labels, func(w io.Writer) {
		var rows [][]string
		for kind, list := range map[string][]string{"user": labels.Status.Realized.User, "derived": labels.Status.Derived,
			"security-relevant": labels.Status.SecurityRelevant} {
			for _, l := range list {
				rows = append(rows, []string{kind, l})
			}
		}
		slices.SortFunc(rows, slices.Compare[[]string])
		table(w, []string{"KIND", "LABEL"}, rows)
	})
}

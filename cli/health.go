package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/waggle-net/waggle/api/v1beta"
	"github.com/waggle-net/waggle/pkg/agentclient"
	"github.com/waggle-net/waggle/pkg/printable"
	"github.com/waggle-net/waggle/pkg/tables/nodehealth"
)

// healthCommand corresponds to Cilium's program cilium-health.
func (a *app) healthCommand() *cobra.Command {
	var how healthDetail
	group := &cobra.Command{Use: "health", Short: "Show the nodes that this node reaches"}
	status := &cobra.Command{
		Use: "status", Short: "List the nodes and the number of their addresses that answer", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.health(cmd.Context(), how) },
	}
	status.Flags().BoolVar(&how.probe, "probe", false, "Probe all nodes now, for at most 20s, instead of showing the last probes")
	status.Flags().BoolVar(&how.verbose, "verbose", false, "Show each address with its round-trip times or errors")
	status.Flags().StringVar(&how.socket, "health-socket", "", "Socket of the health API (default: "+v1beta.SocketName+" beside the agent's socket)")
	group.AddCommand(a.withOutput(status))
	return group
}

// healthDetail configures the output and the socket of the command.
type healthDetail struct {
	probe, verbose bool
	socket         string
}

func (a *app) health(ctx context.Context, how healthDetail) error {
	if how.socket == "" {
		how.socket = a.beside(v1beta.SocketName)
	}
	if a.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, a.timeout)
		defer cancel()
	}
	c := agentclient.New(how.socket)
	s, err := c.NodeHealth(ctx, how.probe)
	if err != nil {
		return fmt.Errorf("%w; the socket does not exist with --enable-health-checking=false", err)
	}
	return a.show(s, func(w io.Writer) { healthText(w, s, how.verbose) })
}

// healthText prints the report in the format of Cilium's tool, starting with the local node.
func healthText(w io.Writer, s *v1beta.HealthStatusResponse, verbose bool) {
	nodes := slices.Clone(s.Nodes)
	slices.SortStableFunc(nodes, func(a, b v1beta.NodeStatus) int {
		switch s.Local.Name {
		case a.Name:
			return -1
		case b.Name:
			return 1
		}
		return strings.Compare(a.Name, b.Name)
	})
	reachable := 0
	for _, n := range nodes {
		if stateOf(n) == nodehealth.Reachable {
			reachable++
		}
	}
	head := fmt.Sprintf("Cluster health:   %d/%d reachable", reachable, len(nodes))
	if s.Timestamp != "" {
		head += "   (" + s.Timestamp + ")"
	}
	if s.ProbeInterval != "" {
		head += "   (Probe interval: " + s.ProbeInterval + ")"
	}
	fmt.Fprintln(w, printable.Text(head))
	if len(s.NotProbed) > 0 {
		const shown = 3
		fmt.Fprintf(w, "%d nodes were not probed in time, so their results are older: %s\n", len(s.NotProbed), printable.List(s.NotProbed, shown))
	}
	if verbose {
		healthDetails(w, nodes, s.Local.Name)
		return
	}
	rows := make([][]string, 0, len(nodes))
	for _, n := range nodes {
		var ips []string
		for _, p := range n.Host.Paths() {
			ips = append(ips, p.IP)
		}
		rows = append(rows, []string{localName(n.Name, s.Local.Name), strings.Join(ips, ","), reached(n.Host), reached(n.HealthEndpoint)})
	}
	table(w, []string{"NAME", "IP", "NODE", "ENDPOINTS"}, rows)
}

func localName(name, local string) string {
	if name == local {
		return name + " (localhost)"
	}
	return name
}

// stateOf returns the combined state of all addresses of a node.
func stateOf(n v1beta.NodeStatus) (state nodehealth.State) {
	state = nodehealth.Unknown
	for _, p := range append(n.Host.Paths(), n.HealthEndpoint.Paths()...) {
		state = nodehealth.Worst(state, pathState(p))
	}
	return state
}

func pathState(p v1beta.PathStatus) (state nodehealth.State) {
	state = nodehealth.Unknown
	for _, c := range []*v1beta.ConnectivityStatus{p.ICMP, p.HTTP} {
		switch {
		case c == nil:
		case c.Status == "":
			state = nodehealth.Worst(state, nodehealth.Reachable)
		default:
			return nodehealth.Unreachable
		}
	}
	return state
}

// reached returns the number of reachable addresses, such as "1/2 (1 unknown)".
func reached(a *v1beta.AddressesStatus) string {
	count := map[nodehealth.State]int{}
	paths := a.Paths()
	for _, p := range paths {
		count[pathState(p)]++
	}
	if len(paths) == 0 {
		return ""
	}
	text := fmt.Sprintf("%d/%d", count[nodehealth.Reachable], len(paths))
	if unknown := count[nodehealth.Unknown]; unknown > 0 {
		text += fmt.Sprintf(" (%d unknown)", unknown)
	}
	return text
}

// healthDetails prints all addresses of all nodes.
func healthDetails(w io.Writer, nodes []v1beta.NodeStatus, local string) {
	tw := tabwriter.NewWriter(w, 0, 8, 3, ' ', 0)
	for _, n := range nodes {
		fmt.Fprintf(tw, "%s:\n", printable.Text(localName(n.Name, local)))
		for _, part := range []struct {
			name      string
			addresses *v1beta.AddressesStatus
		}{{"Host", n.Host}, {"Endpoint", n.HealthEndpoint}} {
			for _, p := range part.addresses.Paths() {
				fmt.Fprintf(tw, "  %s connectivity to %s:\n", part.name, printable.Text(p.IP))
				fmt.Fprintf(tw, "    ICMP to stack:\t%s\n", connectivity(p.ICMP))
				fmt.Fprintf(tw, "    HTTP to agent:\t%s\n", connectivity(p.HTTP))
			}
		}
	}
	_ = tw.Flush()
}

// connectivity returns the state of a path, escaped, with a tab before the time.
func connectivity(c *v1beta.ConnectivityStatus) string {
	if c == nil {
		return string(nodehealth.Unknown)
	}
	text := printable.Text(c.Status)
	if c.Status == "" {
		text = "OK, RTT=" + c.Latency.String()
	}
	if c.LastProbed != "" {
		text += "\t(Last probed: " + printable.Text(c.LastProbed) + ")"
	}
	return text
}

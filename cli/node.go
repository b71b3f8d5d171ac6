package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/waggle-net/waggle/pkg/agentclient"
	"github.com/waggle-net/waggle/pkg/tables/nodehealth"
	"github.com/waggle-net/waggle/pkg/tables/nodepaths"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/tables/nodeslots"
	"github.com/waggle-net/waggle/pkg/tables/pathtests"
)

func (a *app) nodeCommand() *cobra.Command {
	group := &cobra.Command{Use: "node", Short: "Show nodes"}
	get := a.withOutput(&cobra.Command{
		Use: "get NAME", Short: "Show one node: addresses, pod CIDRs and rejected claims", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.ask(cmd, func(ctx context.Context, c *agentclient.Client) error { return a.node(ctx, c, args[0]) })
		},
	})
	group.AddCommand(a.simple("list", "List the nodes that this node knows", a.nodes), get)
	return group
}

func (a *app) nodes(ctx context.Context, c *agentclient.Client) error {
	nodes, err := c.Nodes(ctx)
	if err != nil {
		return err
	}
	paths, err := agentclient.Rows[*nodehealth.Path](ctx, c, "node-health")
	if err != nil {
		return err
	}
	health := map[string]nodehealth.State{}
	for n := range nodehealth.Nodes(slices.Values(paths)) {
		health[n.Name] = n.State()
	}
	tests, err := agentclient.Rows[*pathtests.Test](ctx, c, "path-tests")
	if err != nil {
		return err
	}
	tested := map[string]string{}
	for p := range pathtests.Paths(slices.Values(tests)) {
		tested[p.Node] = p.Text()
	}
	modes, err := modesOf(ctx, c)
	if err != nil {
		return err
	}
	return a.show(nodes, func(w io.Writer) {
		header := []string{"NAME", "IPV4", "IPV4 PODS", "IPV6", "IPV6 PODS", "SOURCE", "HEALTH", "PATH"}
		if len(modes) > 0 {
			header = append(header, "MODE")
		}
		var rows [][]string
		for _, n := range nodes.NodesAdded {
			v4, v6 := n.PrimaryAddress.Ipv4, n.PrimaryAddress.Ipv6
			rows = append(rows, []string{n.Name, v4.IP, v4.AllocRange, v6.IP, v6.AllocRange, n.Source, string(health[shortName(n.Name)]), tested[shortName(n.Name)]})
			if len(modes) > 0 {
				last := len(rows) - 1
				rows[last] = append(rows[last], modes[shortName(n.Name)])
			}
		}
		table(w, header, rows)
	})
}

// modesOf returns the routing mode of each other node by node name; empty if --routing-mode sets the same mode for all nodes.
func modesOf(ctx context.Context, c *agentclient.Client) (map[string]string, error) {
	rows, err := agentclient.Rows[*nodepaths.Path](ctx, c, "node-paths")
	if err != nil {
		return nil, err
	}
	slots, err := agentclient.Rows[*nodeslots.Slot](ctx, c, "node-slots")
	modes := map[string]string{}
	if len(rows) == 0 && !slices.ContainsFunc(slots, func(s *nodeslots.Slot) bool { return s.Routed }) {
		return modes, err
	}
	for _, p := range rows {
		modes[p.Node] = string(p.Mode)
	}
	for _, s := range slots {
		if mode := s.Mode(); mode != "" {
			modes[s.Node] = mode
		}
	}
	return modes, err
}

// nodeIDCommand is a separate command group, as in Cilium's command line.
func (a *app) nodeIDCommand() *cobra.Command {
	group := &cobra.Command{Use: "nodeid", Short: "Show the ids of nodes"}
	group.AddCommand(a.simple("list", "List the ids of nodes in BPF maps, with the addresses of each node", a.nodeIDs))
	return group
}

func (a *app) nodeIDs(ctx context.Context, c *agentclient.Client) error {
	ids, err := c.NodeIDs(ctx)
	if err != nil {
		return err
	}
	return a.show(ids, func(w io.Writer) {
		var rows [][]string
		for _, id := range ids {
			rows = append(rows, []string{strconv.FormatInt(id.ID, 10), strings.Join(id.Ips, ",")})
		}
		table(w, []string{"NODE ID", "IP ADDRESSES"}, rows)
	})
}

// node shows one node. The name may have the cluster's name as a prefix, as in the list.
func (a *app) node(ctx context.Context, c *agentclient.Client, name string) error {
	all, err := agentclient.Rows[*nodes.Node](ctx, c, "nodes")
	if err != nil {
		return err
	}
	paths, err := agentclient.Rows[*nodehealth.Path](ctx, c, "node-health")
	if err != nil {
		return err
	}
	tests, err := agentclient.Rows[*pathtests.Test](ctx, c, "path-tests")
	if err != nil {
		return err
	}
	modes, err := agentclient.Rows[*nodepaths.Path](ctx, c, "node-paths")
	if err != nil {
		return err
	}
	name = shortName(name)
	i := slices.IndexFunc(all, func(n *nodes.Node) bool { return n.Name == name })
	if i < 0 {
		return fmt.Errorf("node %s is not in the cluster: see waggle node list", name)
	}
	n := all[i]
	return a.show(n, func(w io.Writer) {
		rows := [][]string{{"Source", string(n.Source)}}
		for _, addr := range n.Addresses {
			rows = append(rows, []string{addr.Type, addr.Addr.String()})
		}
		for _, p := range paths {
			if p.Node == n.Name {
				rows = append(rows, []string{"Health", strings.Join(slices.DeleteFunc([]string{p.Addr.String(), string(p.State()), p.Problem()},
					func(s string) bool { return s == "" }), " ")})
			}
		}
		for _, p := range modes {
			if p.Node == n.Name {
				rows = append(rows, []string{"Mode", p.Text()})
			}
		}
		if n.Receives.Known {
			rows = append(rows, []string{"Receives", n.Receives.String()})
		}
		for _, t := range tests {
			if t.Node == n.Name {
				rows = append(rows, []string{"Path", strings.TrimSpace(fmt.Sprintf("%s %s %s", t.Kind, t.State, t.Sentence()))})
			}
		}
		for _, p := range n.CIDRs {
			rows = append(rows, []string{"Pods", p.String()})
		}
		for _, r := range n.Refused {
			rows = append(rows, []string{"Refused", r.String()})
		}
		table(w, []string{"NAME", n.Name}, rows)
	})
}

// shortName returns the name of a node without the cluster's name.
func shortName(name string) string {
	if _, after, found := strings.Cut(name, "/"); found {
		return after
	}
	return name
}

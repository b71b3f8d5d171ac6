package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/waggle-net/waggle/pkg/agentclient"
	"github.com/waggle-net/waggle/pkg/policy/policycompiler"
	"github.com/waggle-net/waggle/pkg/tables/endpointpolicies"
	"github.com/waggle-net/waggle/pkg/tables/namedcidrs"
	"github.com/waggle-net/waggle/pkg/tables/policyclasses"
	"github.com/waggle-net/waggle/pkg/tables/policyentries"
)

// bpfCommand prints the contents of the kernel's maps in readable form.
func (a *app) bpfCommand() *cobra.Command {
	group := &cobra.Command{Use: "bpf", Short: "Show entries of the maps of the datapath"}
	group.AddCommand(a.bpfPolicyCommand(), a.bpfIPCacheCommand(), a.ctCommand(), a.natCommand(), a.lbCommand())
	return group
}

func (a *app) bpfPolicyCommand() *cobra.Command {
	group := &cobra.Command{Use: "policy", Short: "Show the compiled policies of endpoints"}
	list := a.simple("list", "List the compiled policies; endpoints may share one",
		showRows(a, "policy-entries", []string{"ID", "ENTRIES", "RANGES", "USERS", "POLICIES", "STATUS"}, (*policyentries.Policy).TableRow))
	get := &cobra.Command{
		Use: "get [ENDPOINT]", Short: "Show the entries in the kernel, of all policies or of the policy of one endpoint", Args: cobra.MaximumNArgs(1),
		Long: "Show the entries in the kernel, of all policies or of the policy of one endpoint.\n\n" +
			"ENDPOINT is a number or NAMESPACE/POD. A packet is allowed if an entry allows it and none denies it; policy 1 allows\n" +
			"all packets, 0 none, and packets of the local host need no entry (--allow-localhost). Port ranges are shown as in\n" +
			"the kernel, split at powers of two. waggle identity get and waggle ip list show the owner of an identity.",
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.ask(cmd, func(ctx context.Context, c *agentclient.Client) error {
				if len(args) == 0 {
					return a.policyEntries(ctx, c, nil)
				}
				directions, err := directionsOf(ctx, c, args[0])
				if err != nil {
					return err
				}
				return a.policyEntries(ctx, c, directions)
			})
		},
	}
	group.AddCommand(list, a.withOutput(get))
	return group
}

// directionsOf returns the directions in which an endpoint uses a policy: policy id -> "ingress", "egress" or both.
func directionsOf(ctx context.Context, c *agentclient.Client, id string) (map[uint32][]string, error) {
	ep, err := c.Endpoint(ctx, endpointID(id))
	if err != nil {
		return nil, hinted(err, "endpoint "+id+" on this node", "waggle endpoint list")
	}
	rows, err := agentclient.Rows[*endpointpolicies.EndpointPolicy](ctx, c, "endpoint-policies")
	if err != nil {
		return nil, err
	}
	for _, row := range rows {
		if int64(row.EndpointID) == ep.ID {
			directions := map[uint32][]string{row.Ingress.Enforced.ID: {"ingress"}}
			directions[row.Egress.Enforced.ID] = append(directions[row.Egress.Enforced.ID], "egress")
			return directions, nil
		}
	}
	return nil, fmt.Errorf("endpoint %d has no policy yet: the kernel drops all its packets", ep.ID)
}

// policyEntry is an entry of the maps policy and policy_ranges in the output of bpf policy get.
type policyEntry struct {
	Policy    uint32   `json:"policy"`
	Direction []string `json:"direction,omitempty"`
	Peer      string   `json:"peer"`
	Port      string   `json:"port"`
	Deny      bool     `json:"deny,omitempty"`
	Rule      uint32   `json:"rule,omitempty"`
	low       uint16   // first port
}

func (a *app) policyEntries(ctx context.Context, c *agentclient.Client, directions map[uint32][]string) error {
	entries := []policyEntry{}
	prefixes, err := namedCIDRs(ctx, c)
	if err != nil {
		return err
	}
	classes, err := classNames(ctx, c)
	if err != nil {
		return err
	}
	for _, name := range []string{"policy", "policy_ranges"} {
		m, err := c.Map(ctx, name)
		if err != nil {
			return err
		}
		for _, e := range m.Cache {
			entry := readPolicyEntry(e.Key, e.Value, prefixes, classes)
			if directions == nil || directions[entry.Policy] != nil {
				entry.Direction = directions[entry.Policy]
				entries = append(entries, entry)
			}
		}
	}
	entries = append(entries, withoutEntries(directions, entries)...)
	slices.SortStableFunc(entries, func(x, y policyEntry) int {
		return cmp.Or(cmp.Compare(x.Policy, y.Policy), cmp.Compare(x.Peer, y.Peer), cmp.Compare(x.low, y.low))
	})
	return a.show(entries, func(w io.Writer) {
		var rows [][]string
		for _, e := range entries {
			verdict := "Allow"
			if e.Deny {
				verdict = "Deny"
			}
			rows = append(rows, []string{strconv.FormatUint(uint64(e.Policy), 10), verdict, strings.Join(e.Direction, ","), e.Peer, e.Port})
		}
		table(w, []string{"ID", "POLICY", "DIRECTION", "PEER", "PORT/PROTO"}, rows)
	})
}

// withoutEntries describes policies without entries: policy 1 allows all traffic, any other policy denies all.
func withoutEntries(directions map[uint32][]string, entries []policyEntry) (list []policyEntry) {
	for id, names := range directions {
		if slices.ContainsFunc(entries, func(e policyEntry) bool { return e.Policy == id }) {
			continue
		}
		peer := "no peer"
		if id == 1 {
			peer = "all peers"
		}
		list = append(list, policyEntry{Policy: id, Direction: names, Peer: peer, Port: "ANY"})
	}
	return list
}

// namedCIDRs returns the prefixes in policies by their identity.
func namedCIDRs(ctx context.Context, c *agentclient.Client) (map[uint32]string, error) {
	rows, err := agentclient.Rows[*namedcidrs.CIDR](ctx, c, "named-cidrs")
	prefixes := map[uint32]string{}
	for _, row := range rows {
		prefixes[row.Identity] = row.Prefix.String()
	}
	return prefixes, err
}

// classNames returns descriptions of the pods in each class of identities (all pods, or a namespace), by class number.
func classNames(ctx context.Context, c *agentclient.Client) (map[uint32]string, error) {
	rows, err := agentclient.Rows[*policyclasses.Class](ctx, c, "policy-classes")
	names := map[uint32]string{}
	for _, row := range rows {
		names[row.Number] = row.String()
	}
	return names, err
}

// readPolicyEntry parses the agent's text for an entry: "policy=2 identity=300 kind=1 ...".
func readPolicyEntry(key, value string, prefixes, classes map[uint32]string) policyEntry {
	fields := map[string]uint64{}
	for _, field := range strings.Fields(key + " " + value) {
		name, number, _ := strings.Cut(field, "=")
		fields[name], _ = strconv.ParseUint(number, 10, 32)
	}
	k := policycompiler.Key{Identity: uint32(fields["identity"]), Kind: policycompiler.Kind(fields["kind"]), Protocol: uint8(fields["protocol"]),
		PortBits: uint8(fields["port_bits"]), Port: uint16(fields["port"])}
	if length, ranges := fields["prefixlen"]; ranges {
		k.PortBits = uint8(length - rangeStatic)
	}
	peer := map[policycompiler.Kind]string{policycompiler.Any: "all peers", policycompiler.Identity: "identity ", policycompiler.CIDR: "CIDR ",
		policycompiler.CIDROutside: "outside CIDR "}[k.Kind]
	switch k.Kind {
	case policycompiler.Any:
	case policycompiler.Identity:
		peer += strconv.FormatUint(uint64(k.Identity), 10)
	case policycompiler.Class:
		peer = cmp.Or(classes[k.Identity], "class "+strconv.FormatUint(uint64(k.Identity), 10))
	default:
		peer += cmp.Or(prefixes[k.Identity], strconv.FormatUint(uint64(k.Identity), 10))
	}
	return policyEntry{Policy: uint32(fields["policy"]), Peer: peer, Port: k.PortText(), Deny: fields["deny"] != 0,
		Rule: uint32(fields["rule"]), low: k.Port}
}

// rangeStatic is the length in bits of a policy_ranges key before the port.
const rangeStatic = 80

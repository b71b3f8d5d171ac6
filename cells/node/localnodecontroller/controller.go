package localnodecontroller

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/loop"
	"github.com/waggle-net/waggle/pkg/rows"
	"github.com/waggle-net/waggle/pkg/tables/ipamaddresses"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
	"github.com/waggle-net/waggle/pkg/tables/nodeaddresses"
	"github.com/waggle-net/waggle/pkg/tables/nodecidrs"
)

// Owners of the addresses of waggle_host in ipam-addresses.
const (
	routerOwner = "router"
	healthOwner = "health"
)

type params struct {
	cell.In

	DB            *statedb.DB
	Table         statedb.RWTable[*localnode.LocalNode]
	CIDRs         statedb.Table[nodecidrs.Candidate]
	NodeAddresses statedb.Table[nodeaddresses.Address]
	PodAddresses  statedb.Table[ipamaddresses.Address]
	Agent         agentconfig.Agent
}

type controller struct {
	params
	initialized func(statedb.WriteTxn)
}

func newController(p params) *controller {
	txn := p.DB.WriteTxn(p.Table)
	defer txn.Abort()
	c := &controller{params: p, initialized: p.Table.RegisterInitializer(txn, "local-node")}
	txn.Commit()
	return c
}

func (c *controller) run(ctx context.Context, health cell.Health) error {
	return loop.Run(ctx, c.DB, loop.Options{}, func(r *loop.Round) error {
		node := c.describe(r)
		if err := c.commit(node); err != nil {
			health.Degraded("write local-node", err)
			return err
		}
		if node.Ready {
			health.OK("ready")
		} else {
			health.Degraded("not ready", errors.New("waiting for "+node.WaitingFor))
		}
		return nil
	})
}

// commit inserts the row if it changed. The first ready row completes the table.
func (c *controller) commit(node *localnode.LocalNode) error {
	txn := c.DB.WriteTxn(c.Table)
	defer txn.Abort()
	if err := rows.Put(txn, c.Table, localnode.ByName(node.Name), node, rows.Same); err != nil {
		return err
	}
	if node.Ready {
		c.initialized(txn)
	}
	txn.Commit()
	return nil
}

// describe computes the row and watches the input tables.
func (c *controller) describe(r *loop.Round) *localnode.LocalNode {
	node := &localnode.LocalNode{Name: c.Agent.NodeName}
	var missing []string
	for _, f := range []struct {
		name    string
		enabled bool
		into    *localnode.Family
	}{{"ipv4", c.Agent.EnableIPv4, &node.IPv4}, {"ipv6", c.Agent.EnableIPv6, &node.IPv6}} {
		if !f.enabled {
			continue
		}
		var missingInput string
		if *f.into, missingInput = c.family(r, f.name); missingInput != "" {
			missing = append(missing, f.name+": "+missingInput)
		}
	}
	node.Addresses = c.nodeAddresses(r, node)
	node.Ready, node.WaitingFor = len(missing) == 0, strings.Join(missing, "; ")
	return node
}

// family returns the addresses of one family, and a description of the missing input, if any.
func (c *controller) family(r *loop.Round, name string) (localnode.Family, string) {
	var f localnode.Family
	r.Watch(c.CIDRs)
	chosen, _, ok := c.CIDRs.Get(r.Txn, nodecidrs.Chosen(name))
	if !ok {
		return f, nodecidrs.WaitingFor(r.Txn, c.CIDRs, name)
	}
	f.AllocRange = chosen.Prefix
	f.Health = c.reserved(r, healthOwner, f.AllocRange)
	if f.Router = c.reserved(r, routerOwner, f.AllocRange); !f.Router.IsValid() {
		return f, "an address for the router out of " + f.AllocRange.String()
	}
	return f, ""
}

// reserved returns the reserved address of an owner in a range; invalid when there is none.
func (c *controller) reserved(r *loop.Round, owner string, prefix netip.Prefix) netip.Addr {
	for row := range loop.List(r, c.PodAddresses, ipamaddresses.ByOwner(owner)) {
		if row.State == ipamaddresses.Reserved && prefix.Contains(row.Addr) {
			return row.Addr
		}
	}
	return netip.Addr{}
}

// nodeAddresses returns the addresses of the node, except the router and health addresses, and sets the primary address of each family in node.
func (c *controller) nodeAddresses(r *loop.Round, node *localnode.LocalNode) []netip.Addr {
	var addresses []netip.Addr
	for row := range loop.All(r, c.NodeAddresses) {
		ours := []netip.Addr{node.IPv4.Router, node.IPv4.Health, node.IPv6.Router, node.IPv6.Health}
		if !slices.Contains(ours, row.Addr) {
			addresses = append(addresses, row.Addr)
		}
		switch {
		case !row.Primary:
		case row.Addr.Is4() && c.Agent.EnableIPv4:
			node.IPv4.NodeIP = row.Addr
		case row.Addr.Is6() && c.Agent.EnableIPv6:
			node.IPv6.NodeIP = row.Addr
		}
	}
	slices.SortFunc(addresses, netip.Addr.Compare)
	return slices.Compact(addresses)
}

package localnode

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/heartbeat"
	"github.com/waggle-net/waggle/pkg/settings"
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
	Agent         settings.Agent
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
	for {
		heartbeat.Busy(ctx)
		txn := c.DB.ReadTxn()
		watch := statedb.NewWatchSet()
		node := c.describe(txn, watch)
		if err := c.commit(node); err != nil {
			health.Degraded("write local-node", err)
			return err
		}
		if node.Ready {
			health.OK("Ready")
		} else {
			health.Degraded("not ready", errors.New("waiting for "+node.WaitingFor))
		}
		heartbeat.Idle(ctx)
		if _, err := watch.Wait(ctx, 0); err != nil {
			return nil
		}
	}
}

// commit inserts the row if it changed. The first ready row completes the table.
func (c *controller) commit(node *localnode.LocalNode) error {
	txn := c.DB.WriteTxn(c.Table)
	defer txn.Abort()
	old, _, ok := c.Table.Get(txn, localnode.ByName(node.Name))
	if ok && old.Equal(node) {
		return nil
	}
	if _, _, err := c.Table.Insert(txn, node); err != nil {
		return fmt.Errorf("insert %s: %w", node.Name, err)
	}
	if node.Ready {
		c.initialized(txn)
	}
	txn.Commit()
	return nil
}

// describe computes the row and watches the input tables.
func (c *controller) describe(txn statedb.ReadTxn, watch *statedb.WatchSet) *localnode.LocalNode {
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
		if *f.into, missingInput = c.family(txn, watch, f.name); missingInput != "" {
			missing = append(missing, f.name+": "+missingInput)
		}
	}
	node.Addresses = c.nodeAddresses(txn, watch, node)
	node.Ready, node.WaitingFor = len(missing) == 0, strings.Join(missing, "; ")
	return node
}

// family returns the addresses of one family, and a description of the missing input, if any.
func (c *controller) family(txn statedb.ReadTxn, watch *statedb.WatchSet, name string) (localnode.Family, string) {
	var f localnode.Family
	_, changed := c.CIDRs.AllWatch(txn)
	watch.Add(changed)
	chosen, _, ok := c.CIDRs.Get(txn, nodecidrs.Chosen(name))
	if !ok {
		return f, nodecidrs.WaitingFor(txn, c.CIDRs, name)
	}
	f.AllocRange = chosen.Prefix
	f.Health = c.reserved(txn, watch, healthOwner, f.AllocRange)
	if f.Router = c.reserved(txn, watch, routerOwner, f.AllocRange); !f.Router.IsValid() {
		return f, "an address for the router out of " + f.AllocRange.String()
	}
	return f, ""
}

// reserved returns the reserved address of an owner in a range; invalid when there is none.
func (c *controller) reserved(txn statedb.ReadTxn, watch *statedb.WatchSet, owner string, prefix netip.Prefix) netip.Addr {
	rows, changed := c.PodAddresses.ListWatch(txn, ipamaddresses.ByOwner(owner))
	watch.Add(changed)
	for row := range rows {
		if row.State == ipamaddresses.Reserved && prefix.Contains(row.Addr) {
			return row.Addr
		}
	}
	return netip.Addr{}
}

// nodeAddresses returns the addresses of the node, except the router and health addresses, and sets the primary address of each family in node.
func (c *controller) nodeAddresses(txn statedb.ReadTxn, watch *statedb.WatchSet, node *localnode.LocalNode) []netip.Addr {
	rows, changed := c.NodeAddresses.AllWatch(txn)
	watch.Add(changed)
	var addresses []netip.Addr
	for row := range rows {
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

package nodecidr

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/loop"
	"github.com/waggle-net/waggle/pkg/podlink"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/nodeaddresses"
	"github.com/waggle-net/waggle/pkg/tables/nodecidrs"
	"github.com/waggle-net/waggle/pkg/tables/sources"
)

type params struct {
	cell.In

	DB          *statedb.DB
	Table       statedb.RWTable[nodecidrs.Candidate]
	Nodes       statedb.Table[*k8s.Node]
	CiliumNodes statedb.Table[*cilium.Node]
	Sources     statedb.Table[sources.Source]
	Addresses   statedb.Table[nodeaddresses.Address]
	Settings    settings
	Agent       agentconfig.Agent
}

type controller struct {
	params
	initialized func(statedb.WriteTxn)
}

func newController(p params) *controller {
	txn := p.DB.WriteTxn(p.Table)
	defer txn.Abort()
	c := &controller{params: p, initialized: p.Table.RegisterInitializer(txn, "node-cidr")}
	txn.Commit()
	return c
}

const (
	// listTimeout is the time after the start for which the first list of the API server is awaited although the copy on disk names a CIDR. Pods that are added
	// in this time wait for their addresses.
	listTimeout = 5 * time.Second
	// retryTimeout replaces listTimeout once an attempt to list has failed. Next attempts, the first one 0.2 s later, can succeed.
	retryTimeout = time.Second
)

// settle is the debounce interval between a change of the inputs and a round.
const settle = time.Millisecond

func (c *controller) run(ctx context.Context, health cell.Health) error {
	return loop.Run(ctx, c.DB, loop.Options{Settle: settle}, func(r *loop.Round) error {
		in := c.read(r)
		candidates := choose(in)
		if err := c.commit(candidates, in.waitingFor == ""); err != nil {
			health.Degraded("write node-cidrs", err)
			return err
		}
		report(health, candidates)
		return nil
	})
}

// report sets the health of the module: the chosen ranges, or the first rejected candidate.
func report(health cell.Health, candidates []nodecidrs.Candidate) {
	chosen, text := 0, "no range is chosen"
	for _, candidate := range candidates {
		if strings.HasPrefix(candidate.Reason, rejected) {
			health.Degraded("a pod CIDR is unusable",
				fmt.Errorf("%s %s: %s", candidate.Source, candidate.Raw, candidate.Reason))
			return
		}
		if candidate.Chosen {
			chosen++
			text = fmt.Sprintf("%d chosen, the last from %s", chosen, candidate.Source)
		}
	}
	health.OK(text)
}

// read collects the input of the choice and watches its tables.
func (c *controller) read(r *loop.Round) input {
	in := input{settings: c.Settings, enableIPv4: c.Agent.EnableIPv4, enableIPv6: c.Agent.EnableIPv6,
		nodeName: c.Agent.NodeName}
	in.node, _ = loop.Get(r, c.Nodes, k8s.NodeByName(c.Agent.NodeName))
	in.ciliumNode, _ = loop.Get(r, c.CiliumNodes, cilium.NodeByName(c.Agent.NodeName))

	table, objects := c.Nodes.Name(), "Nodes"
	if c.Settings.source == fromCiliumNode {
		table, objects = c.CiliumNodes.Name(), "CiliumNodes"
	}
	source, _ := loop.Get(r, c.Sources, sources.ByTable(table))
	in.addressesPending = !r.Complete(c.Addresses)
	switch {
	case !source.Usable():
		in.waitingFor = "the " + objects + " of the cluster to be read"
		if source.WaitingFor != "" {
			in.waitingFor = "the " + objects + " of the cluster: " + source.WaitingFor
		}
	case in.addressesPending:
		in.waitingFor = "the addresses of this node"
	case source.Copied():
		limit := listTimeout
		if source.WaitingFor != sources.FirstList {
			limit = retryTimeout
		}
		if left := limit - time.Since(source.Since); left > 0 {
			in.listing, in.waitingFor = true, "the "+objects+" of the cluster: "+source.WaitingFor
			r.Within(left)
		}
	}
	in.nodeIPv4, in.addresses = c.addresses(r)
	in.chosenIPv4, in.derivedIPv4 = c.before(r.Txn, "ipv4")
	in.chosenIPv6, in.derivedIPv6 = c.before(r.Txn, "ipv6")
	return in
}

// addresses returns the node's primary IPv4 address and all its addresses, except the ones on the device of the router addresses.
func (c *controller) addresses(r *loop.Round) (primaryIPv4 netip.Addr, all []netip.Addr) {
	for row := range loop.All(r, c.Addresses) {
		if row.Device == podlink.HostDevice {
			continue
		}
		all = append(all, row.Addr)
		if row.Primary && row.Addr.Is4() {
			primaryIPv4 = row.Addr
		}
	}
	return primaryIPv4, all
}

// before returns the chosen prefix of the previous round and reports whether it was derived. Only this cell writes the table, so the row cannot change between
// read and commit.
func (c *controller) before(txn statedb.ReadTxn, family string) (netip.Prefix, bool) {
	row, _, _ := c.Table.Get(txn, nodecidrs.Chosen(family))
	return row.Prefix, row.Source == nodecidrs.Derived
}

// commit replaces the rows of the table. It deletes rows before it inserts others, because at most one row of a family may be chosen.
func (c *controller) commit(candidates []nodecidrs.Candidate, complete bool) error {
	txn := c.DB.WriteTxn(c.Table)
	defer txn.Abort()
	want := map[string]nodecidrs.Candidate{}
	for _, candidate := range candidates {
		want[candidate.Family+"/"+candidate.Source] = candidate
	}
	for row := range c.Table.All(txn) {
		key := row.Family + "/" + row.Source
		if want[key] == row {
			delete(want, key)
			continue
		}
		if _, _, err := c.Table.Delete(txn, row); err != nil {
			return fmt.Errorf("delete candidate %s: %w", key, err)
		}
	}
	for key, row := range want {
		if _, _, err := c.Table.Insert(txn, row); err != nil {
			return fmt.Errorf("insert candidate %s: %w", key, err)
		}
	}
	if complete {
		c.initialized(txn)
	}
	txn.Commit()
	return nil
}

package nodefirewall

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/datapath/nftforward"
	"github.com/waggle-net/waggle/pkg/drift"
	"github.com/waggle-net/waggle/pkg/loop"
	"github.com/waggle-net/waggle/pkg/podlink"
	"github.com/waggle-net/waggle/pkg/rows"
	"github.com/waggle-net/waggle/pkg/tables/devices"
	"github.com/waggle-net/waggle/pkg/tables/firewallchains"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
)

const (
	// pause is multiplied by the number of chains and rules of a read to get the minimum interval between two reads. To read a rule takes some microseconds, and a
	// node with kube-proxy may have tens of thousands of rules.
	pause = 5 * time.Millisecond
	// longest limits the interval that results from pause, and the interval of the configuration.
	longest = 10 * time.Minute
)

type params struct {
	cell.In

	Agent     agentconfig.Agent
	DB        *statedb.DB
	Drift     drift.Watch
	Devices   statedb.Table[*devices.Device]
	LocalNode statedb.Table[*localnode.LocalNode]
	Table     statedb.RWTable[firewallchains.Chain]
	Kernel    kernel
}

type controller struct {
	params
	initialized func(statedb.WriteTxn) // the rules were read once
}

func (c *controller) run(ctx context.Context, health cell.Health) error {
	return loop.Run(ctx, c.DB, loop.Options{}, func(r *loop.Round) error {
		packets := c.packets(r.Txn)
		if len(packets) == 0 { // the table is incomplete until then
			r.Watch(c.Devices, c.LocalNode)
			health.OK("no device leads out of the node, or the pod CIDR is unknown")
			return nil
		}

		chains, read, err := c.Kernel.Dropping(packets)
		if err != nil {
			return err
		}
		invalid, more, err := c.droppingInvalid(packets, len(chains) > 0)
		if err != nil {
			return err
		}

		if err := c.write(chains, invalid); err != nil {
			return err
		}
		report(health, chains, invalid)

		r.Within(min(max(c.Drift.Interval, time.Duration(read+more)*pause), longest))
		return nil
	})
}

// droppingInvalid returns the chains that drop packets which connection tracking classifies as invalid, if such packets occur: with hybrid routing, one
// direction of a connection may be direct while programs encapsulate the other, which netfilter does not see. known means that the packets are dropped anyway.
func (c *controller) droppingInvalid(packets []nftforward.Packet, known bool) (chains []nftforward.Chain, read int, err error) {
	if known || !c.Agent.Hybrid || !c.Agent.KubeProxyReplacement {
		return nil, 0, nil
	}
	invalid := slices.Clone(packets)
	for i := range invalid {
		invalid[i].Invalid = true
	}
	return c.Kernel.Dropping(invalid)
}

// packets returns examples of packets from a pod to other hosts: one for each family of pods and each external device.
func (c *controller) packets(txn statedb.ReadTxn) (packets []nftforward.Packet) {
	for n := range c.LocalNode.All(txn) {
		for _, pods := range []netip.Prefix{n.IPv4.AllocRange, n.IPv6.AllocRange} {
			for d := range c.Devices.All(txn) {
				if pods.IsValid() && d.Selected {
					packets = append(packets, nftforward.Packet{In: podlink.HostName("pod", "eth0", 0), InGroup: podlink.Group, Out: d.Name,
						Source: pods.Addr().Next().Next()})
				}
			}
		}
	}
	return packets
}

// write replaces the rows of the table.
func (c *controller) write(chains, invalid []nftforward.Chain) error {
	want := map[string]firewallchains.Chain{}
	for _, chain := range chains {
		want[chain.String()] = firewallchains.Chain{Name: chain.String(), Drops: firewallchains.All}
	}
	for _, chain := range invalid {
		want[chain.String()] = firewallchains.Chain{Name: chain.String(), Drops: firewallchains.Invalid}
	}
	name := func(row firewallchains.Chain) string { return row.Name }
	txn := c.DB.WriteTxn(c.Table)
	defer txn.Abort()
	if err := rows.Replace(txn, c.Table, c.Table.All(txn), want, name, rows.Identical); err != nil {
		return err
	}
	c.initialized(txn)
	txn.Commit()
	return nil
}

func report(health cell.Health, chains, invalid []nftforward.Chain) {
	switch {
	case len(chains) > 0:
		health.Degraded("a firewall of this node drops packets of pods to other hosts", fmt.Errorf("%s: accept packets there from devices %s* and to %s",
			names(chains), podlink.Prefix, podlink.HostDevice))
	case len(invalid) > 0:
		health.OK("--routing-mode=hybrid uses the tunnel to and from this node, because its firewall drops packets that connection tracking classifies as invalid: " + names(invalid))
	default:
		health.OK("nftables rules for forwarded packets do not drop packets of pods by their device or address")
	}
}

// names returns the names of chains, separated by commas.
func names(chains []nftforward.Chain) string {
	all := make([]string, len(chains))
	for i, c := range chains {
		all[i] = c.String()
	}
	return strings.Join(all, ", ")
}

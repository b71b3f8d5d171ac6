package nodefirewall

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/datapath/nftforward"
	"github.com/waggle-net/waggle/pkg/drift"
	"github.com/waggle-net/waggle/pkg/loop"
	"github.com/waggle-net/waggle/pkg/podlink"
	"github.com/waggle-net/waggle/pkg/tables/devices"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
)

const (
	// pause is multiplied by the number of chains and rules of a read to get the minimum interval between two reads. To read a rule takes some microseconds, and a
	// node with kube-proxy may have tens of thousands of rules.
	pause = 5 * time.Millisecond
	// longest limits the interval that results from pause, and the interval of the configuration.
	longest = 10 * time.Minute
)

type controller struct {
	cell.In

	DB        *statedb.DB
	Drift     drift.Watch
	Devices   statedb.Table[*devices.Device]
	LocalNode statedb.Table[*localnode.LocalNode]
	Kernel    kernel
}

func (c *controller) run(ctx context.Context, health cell.Health) error {
	return loop.Run(ctx, c.DB, loop.Options{}, func(r *loop.Round) error {
		packets := c.packets(r.Txn)

		chains, read, err := c.Kernel.Dropping(packets)
		if err != nil {
			return err
		}

		report(health, packets, chains)

		r.Within(min(max(c.Drift.Interval, time.Duration(read)*pause), longest))
		return nil
	})
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

func report(health cell.Health, packets []nftforward.Packet, chains []nftforward.Chain) {
	switch {
	case len(chains) > 0:
		names := make([]string, len(chains))
		for i, c := range chains {
			names[i] = c.String()
		}
		health.Degraded("a firewall of this node drops packets of pods to other hosts", fmt.Errorf("%s: accept packets there from devices %s* and to %s",
			strings.Join(names, ", "), podlink.Prefix, podlink.HostDevice))
	case len(packets) == 0:
		health.OK("no device leads out of the node, or the pod CIDR is unknown")
	default:
		health.OK("nftables rules for forwarded packets do not drop packets of pods by their device or address")
	}
}

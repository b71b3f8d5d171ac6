// Package podpools holds the CIDRs from which the cluster role allocates the pod CIDRs of nodes with --ipam=cluster-pool, as an agent reads them.
package podpools

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/cilium/hive/cell"
	"github.com/spf13/pflag"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/cidrpool"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
)

// Cell provides [Pools] to every cell.
var Cell = cell.Module("pod-pools", "CIDRs of the cluster pool",
	cell.Config(DefaultConfig),
	cell.Provide(New),
)

// Config configures the CIDRs from which pods of all nodes have their addresses. The cluster role, which allocates them, has the same flags.
type Config struct {
	IPv4CIDR []string `mapstructure:"cluster-pool-ipv4-cidr"`
	IPv6CIDR []string `mapstructure:"cluster-pool-ipv6-cidr"`
}

// DefaultConfig has no CIDRs: the default pool of the cluster role contains addresses of machines in many networks, so an agent considers only a configured one.
var DefaultConfig = Config{}

func (c Config) Flags(flags *pflag.FlagSet) {
	flags.StringSlice("cluster-pool-ipv4-cidr", c.IPv4CIDR, "IPv4 CIDRs from which --ipam=cluster-pool allocates the CIDRs of nodes, in this order; "+
		"default: "+cidrpool.DefaultIPv4+". If set, they must contain only pods")
	flags.StringSlice("cluster-pool-ipv6-cidr", c.IPv6CIDR, "IPv6 CIDRs from which --ipam=cluster-pool allocates the CIDRs of nodes, in this order; "+
		"default: "+cidrpool.DefaultIPv6+". If set, they must contain only pods")
}

// Pools has the configured CIDRs of the enabled families; none with another IPAM mode. The default IPv4 pool is never included: ConfigMaps of Cilium name it, and
// machines of many networks have addresses in it.
type Pools []netip.Prefix

var defaultIPv4 = netip.MustParsePrefix(cidrpool.DefaultIPv4)

// New checks the flags.
func New(c Config, a agentconfig.Agent) (p Pools, err error) {
	if a.IPAM != agentconfig.IPAMClusterPool {
		return nil, nil
	}
	for _, f := range []struct {
		enabled bool
		flag    string
		texts   []string
		bits    int
	}{{a.EnableIPv4, "cluster-pool-ipv4-cidr", c.IPv4CIDR, 32}, {a.EnableIPv6, "cluster-pool-ipv6-cidr", c.IPv6CIDR, 128}} {
		if !f.enabled {
			continue
		}
		cidrs, err := cidrpool.Parse(f.texts, f.bits)
		if err != nil {
			return nil, fmt.Errorf("--%s: %w", f.flag, err)
		}
		for _, cidr := range cidrs {
			if cidr = cidr.Masked(); cidr != defaultIPv4 {
				p = append(p, cidr)
			}
		}
	}
	return p, nil
}

// Contains reports whether a prefix lies in one of the CIDRs that contain no primary address of this node.
func (p Pools) Contains(inner netip.Prefix, self *localnode.LocalNode) bool {
	return slices.ContainsFunc(p, func(cidr netip.Prefix) bool {
		return cidr.Bits() <= inner.Bits() && cidr.Contains(inner.Addr()) && !cidr.Contains(self.IPv4.NodeIP) && !cidr.Contains(self.IPv6.NodeIP)
	})
}

// Split returns the CIDRs that only pods have, and the others: a CIDR with the address of this node also contains other machines, and a CIDR with the address of
// a Service also contains other Services. A CIDR is in neither list until the node's address is known, or the row is final without one.
func (p Pools) Split(self *localnode.LocalNode, final bool, services []netip.Addr) (ofPods, others []netip.Prefix) {
	for _, cidr := range p {
		addr := self.IPv4.NodeIP
		if cidr.Addr().Is6() {
			addr = self.IPv6.NodeIP
		}
		switch {
		case addr.IsValid() && cidr.Contains(addr) || slices.ContainsFunc(services, cidr.Contains):
			others = append(others, cidr)
		case addr.IsValid() || final:
			ofPods = append(ofPods, cidr)
		}
	}
	return ofPods, others
}

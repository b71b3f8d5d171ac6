package clusterpool

import (
	"errors"
	"fmt"

	"github.com/spf13/pflag"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/cidrpool"
)

// Config configures the pool. Flags that the node role also has mean the same in both.
type Config struct {
	EnableIPv4 bool     `mapstructure:"enable-ipv4"`
	EnableIPv6 bool     `mapstructure:"enable-ipv6"`
	IPAM       string   `mapstructure:"ipam"`
	IPv4CIDR   []string `mapstructure:"cluster-pool-ipv4-cidr"`
	IPv4Size   int      `mapstructure:"cluster-pool-ipv4-mask-size"`
	IPv6CIDR   []string `mapstructure:"cluster-pool-ipv6-cidr"`
	IPv6Size   int      `mapstructure:"cluster-pool-ipv6-mask-size"`
}

// DefaultConfig shares the defaults of the flags that the node role also has.
var DefaultConfig = Config{
	EnableIPv4: agentconfig.DefaultFlags.EnableIPv4, EnableIPv6: agentconfig.DefaultFlags.EnableIPv6, IPAM: agentconfig.DefaultFlags.IPAM,
	IPv4Size: 24, IPv6Size: 120,
}

func (c Config) Flags(flags *pflag.FlagSet) {
	flags.Bool("enable-ipv4", c.EnableIPv4, "Give pods IPv4 addresses")
	flags.Bool("enable-ipv6", c.EnableIPv6, "Give pods IPv6 addresses")
	flags.String("ipam", c.IPAM, "Source of the pod CIDRs of this node: kubernetes (its Node) or cluster-pool (its CiliumNode)")
	flags.StringSlice("cluster-pool-ipv4-cidr", c.IPv4CIDR, "IPv4 CIDRs from which --ipam=cluster-pool allocates the CIDRs of nodes, in this order; "+
		"default: "+cidrpool.DefaultIPv4+". If set, they must contain only pods")
	flags.Int("cluster-pool-ipv4-mask-size", c.IPv4Size, "Prefix length of a node's IPv4 CIDR from the cluster pool")
	flags.StringSlice("cluster-pool-ipv6-cidr", c.IPv6CIDR, "IPv6 CIDRs from which --ipam=cluster-pool allocates the CIDRs of nodes, in this order; "+
		"default: "+cidrpool.DefaultIPv6+". If set, they must contain only pods")
	flags.Int("cluster-pool-ipv6-mask-size", c.IPv6Size, "Prefix length of a node's IPv6 CIDR from the cluster pool")
}

// family is an address family with a pool.
type family struct {
	name string // "ipv4" or "ipv6"
	flag string // of the CIDRs, for messages
	pool cidrpool.Pool
}

// settings is the checked form of [Config]. With another IPAM mode it has no families, and the cell does nothing.
type settings struct{ families []family }

func newSettings(c Config) (settings, error) {
	var s settings
	switch {
	case c.IPAM != agentconfig.IPAMKubernetes && c.IPAM != agentconfig.IPAMClusterPool:
		return s, fmt.Errorf("--ipam=%q: use %s or %s", c.IPAM, agentconfig.IPAMKubernetes, agentconfig.IPAMClusterPool)
	case !c.EnableIPv4 && !c.EnableIPv6:
		return s, errors.New("--enable-ipv4 and --enable-ipv6 are both false: enable at least one address family")
	case c.IPAM != agentconfig.IPAMClusterPool:
		return s, nil
	}
	for _, f := range []struct {
		enabled bool
		name    string
		cidrs   []string
		initial string
		size    int
		bits    int
	}{{c.EnableIPv4, "ipv4", c.IPv4CIDR, cidrpool.DefaultIPv4, c.IPv4Size, 32}, {c.EnableIPv6, "ipv6", c.IPv6CIDR, cidrpool.DefaultIPv6, c.IPv6Size, 128}} {
		if !f.enabled {
			continue
		}
		flag := "--cluster-pool-" + f.name + "-cidr"
		if len(f.cidrs) == 0 {
			f.cidrs = []string{f.initial}
		}
		pool, err := newPool(f.cidrs, f.size, f.bits)
		if err != nil {
			return settings{}, fmt.Errorf("%s with --cluster-pool-%s-mask-size=%d: %w", flag, f.name, f.size, err)
		}
		s.families = append(s.families, family{f.name, flag, pool})
	}
	return s, nil
}

func newPool(texts []string, size, bits int) (cidrpool.Pool, error) {
	cidrs, err := cidrpool.Parse(texts, bits)
	if err != nil {
		return cidrpool.Pool{}, err
	}
	return cidrpool.New(cidrs, size)
}

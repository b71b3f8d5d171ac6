package nodeaddressfinder

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/spf13/pflag"

	"github.com/waggle-net/waggle/pkg/agentconfig"
)

// Config configures the addresses of the node and of NodePort services.
type Config struct {
	NodePortAddresses []string `mapstructure:"nodeport-addresses"`
	LocalMaxAddrScope int      `mapstructure:"local-max-addr-scope"`
}

// linkScope is RT_SCOPE_LINK.
const linkScope = 253

// DefaultConfig leaves out addresses of link scope and narrower.
var DefaultConfig = Config{LocalMaxAddrScope: linkScope - 1}

func (c Config) Flags(flags *pflag.FlagSet) {
	flags.StringSlice("nodeport-addresses", c.NodePortAddresses,
		"Prefixes of the node addresses that serve NodePort services; default: the primary address of each device and family")
	flags.Int("local-max-addr-scope", c.LocalMaxAddrScope,
		"Largest scope (RT_SCOPE_*) of an address of the node; 252 excludes link-local addresses, 254 includes all")
}

// rules is the checked form of [Config].
type rules struct {
	nodePort   []netip.Prefix // empty: primary addresses
	maxScope   uint8
	ipv4, ipv6 bool // enabled families
}

func newRules(c Config, a agentconfig.Agent) (rules, error) {
	r := rules{ipv4: a.EnableIPv4, ipv6: a.EnableIPv6}
	if c.LocalMaxAddrScope < 0 || c.LocalMaxAddrScope > 255 {
		return rules{}, fmt.Errorf("--local-max-addr-scope=%d: must be from 0 to 255", c.LocalMaxAddrScope)
	}
	r.maxScope = uint8(c.LocalMaxAddrScope)
	for _, s := range c.NodePortAddresses {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			return rules{}, fmt.Errorf("--nodeport-addresses: %w", err)
		}
		r.nodePort = append(r.nodePort, p.Masked())
	}
	return r, nil
}

// serves reports whether --nodeport-addresses contains an address.
func (r rules) serves(a netip.Addr) bool {
	return slices.ContainsFunc(r.nodePort, func(p netip.Prefix) bool { return p.Contains(a) })
}

// enabled reports whether the family of an address is enabled.
func (r rules) enabled(a netip.Addr) bool { return a.Is4() && r.ipv4 || a.Is6() && r.ipv6 }

package masquerademaps

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/spf13/pflag"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/tables/masquerade"
)

// Config configures the prefixes towards which pods keep their addresses.
type Config struct {
	IPv4NativeRoutingCIDR  string   `mapstructure:"ipv4-native-routing-cidr"`
	IPv6NativeRoutingCIDR  string   `mapstructure:"ipv6-native-routing-cidr"`
	MasqueradeExcludeCIDRs []string `mapstructure:"masquerade-exclude-cidrs"`
}

// DefaultConfig excludes nothing.
var DefaultConfig = Config{}

func (c Config) Flags(flags *pflag.FlagSet) {
	flags.String("ipv4-native-routing-cidr", c.IPv4NativeRoutingCIDR,
		"IPv4 prefix in which the network routes pod addresses; packets of pods to this prefix keep their source address; empty for none")
	flags.String("ipv6-native-routing-cidr", c.IPv6NativeRoutingCIDR,
		"IPv6 prefix in which the network routes pod addresses; packets of pods to this prefix keep their source address; empty for none")
	flags.StringSlice("masquerade-exclude-cidrs", c.MasqueradeExcludeCIDRs,
		"More prefixes, of both families, to which packets of pods keep their source address")
}

// rules is the checked form of the flags.
type rules struct {
	ipv4, ipv6 bool // pods are masqueraded
	excluded   map[netip.Prefix]string
}

func newRules(c Config, a agentconfig.Agent) (rules, error) {
	r := rules{ipv4: a.MasqueradeIPv4, ipv6: a.MasqueradeIPv6, excluded: map[netip.Prefix]string{}}
	for _, text := range c.MasqueradeExcludeCIDRs {
		if err := r.exclude("masquerade-exclude-cidrs", text, masquerade.Excluded, 4, 6); err != nil {
			return rules{}, err
		}
	}
	for _, native := range []struct {
		flag, text string
		family     int
	}{{"ipv4-native-routing-cidr", c.IPv4NativeRoutingCIDR, 4}, {"ipv6-native-routing-cidr", c.IPv6NativeRoutingCIDR, 6}} {
		if native.text == "" {
			continue
		}
		if err := r.exclude(native.flag, native.text, masquerade.NativeRouting, native.family); err != nil {
			return rules{}, err
		}
	}
	return r, nil
}

// exclude adds a prefix. A native routing CIDR, which is added last, replaces an exclusion of the same prefix.
func (r rules) exclude(flag, text, reason string, families ...int) error {
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return fmt.Errorf("--%s=%q: want a prefix such as 10.0.0.0/8: %w", flag, text, err)
	}
	family := 4
	if p.Addr().Is6() {
		family = 6
	}
	if !slices.Contains(families, family) || p.Addr().Is4In6() {
		return fmt.Errorf("--%s=%q: is a prefix of the other address family", flag, text)
	}
	r.excluded[p.Masked()] = reason
	return nil
}

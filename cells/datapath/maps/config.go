package maps

import (
	"fmt"

	"github.com/spf13/pflag"

	"github.com/waggle-net/waggle/bpf"
)

// Config holds the configured sizes of maps, in entries (MaglevTables: in tables).
type Config struct {
	PolicyMax    int `mapstructure:"bpf-policy-map-max"`
	CIDRsMax     int `mapstructure:"bpf-cidr-map-max"`
	FlowsMax     int `mapstructure:"bpf-ct-global-tcp-max"`
	ServicesMax  int `mapstructure:"bpf-lb-map-max"`
	AffinityMax  int `mapstructure:"bpf-lb-affinity-map-max"`
	MaglevTables int `mapstructure:"bpf-lb-maglev-map-max"`
	NatMax       int `mapstructure:"bpf-nat-global-max"`
}

// DefaultConfig holds the default sizes.
var DefaultConfig = Config{
	PolicyMax: 65536, CIDRsMax: 512000, FlowsMax: 131072, ServicesMax: bpf.ServicesMax, AffinityMax: bpf.AffinityMax, MaglevTables: 256, NatMax: bpf.NatMax,
}

// Bounds of the size of the map policy. The minimum fits one policy of a few rules; the maximum takes 100 MB.
const (
	leastPolicy = 256
	mostPolicy  = 1 << 20
)

// Bounds of the size of the map cidrs. The minimum fits a few rules; the maximum takes 400 MB when all entries are in use. The kernel allocates memory for each
// entry in use.
const (
	leastCIDRs = 256
	mostCIDRs  = 4 << 20
)

// Bounds of the size of the maps of established flows. The minimum fits a small edge node; the maximum takes 2 GB for each address family.
const (
	leastFlows = 1024
	mostFlows  = 16 << 20
)

// Bounds of the size of the maps of services. The minimum fits the Services of Kubernetes itself; the maximum fits the largest known clusters.
const (
	leastServices = 256
	mostServices  = 1 << 20
)

// mostTables is the number of Maglev tables that take 2 GB at the default table size.
const mostTables = 16384

// Bounds of the size of the map nat4, in entries.
const (
	leastNat = 1024
	mostNat  = 16 << 20
)

// rangesShare is the ratio of the size of policy to the size of policy_ranges: most rules name single ports.
const rangesShare = 4

// Flags adds one flag for each size; the values of c are the defaults.
func (c Config) Flags(flags *pflag.FlagSet) {
	flags.Int("bpf-policy-map-max", c.PolicyMax, fmt.Sprintf("Maximum number of policy entries on this node, %d to %d; entries "+
		"with port ranges have a separate map, a quarter as large", leastPolicy, mostPolicy))
	flags.Int("bpf-cidr-map-max", c.CIDRsMax, fmt.Sprintf("Maximum number of address ranges in the policies of endpoints of this node, %d to %d", leastCIDRs, mostCIDRs))
	flags.Int("bpf-ct-global-tcp-max", c.FlowsMax, fmt.Sprintf("Maximum number of established flows per address family, all protocols together, %d to %d",
		leastFlows, mostFlows))
	flags.Int("bpf-lb-map-max", c.ServicesMax, fmt.Sprintf("Maximum number of frontends of Services, of backends and of source ranges, %d to %d; backend "+
		"slots of all frontends: 1.5 times as many", leastServices, mostServices))
	flags.Int("bpf-lb-affinity-map-max", c.AffinityMax, fmt.Sprintf("Maximum number of clients with session affinity, and of backends of frontends with session affinity, %d to %d",
		leastServices, mostServices))
	flags.Int("bpf-lb-maglev-map-max", c.MaglevTables, fmt.Sprintf("Maximum number of Maglev tables, one per set of backends, 1 to %d; uses memory only with "+
		"--bpf-lb-algorithm=maglev or --bpf-lb-algorithm-annotation, 8 bytes per slot", mostTables))
	flags.Int("bpf-nat-global-max", c.NatMax, fmt.Sprintf("Maximum number of NAT entries for IPv4, two per flow, %d to %d; half as many for IPv6",
		leastNat, mostNat))
}

// check returns an error if a size is out of its bounds.
func (c Config) check() error {
	for _, one := range []struct {
		flag               string
		value, least, most int
	}{
		{"bpf-policy-map-max", c.PolicyMax, leastPolicy, mostPolicy},
		{"bpf-cidr-map-max", c.CIDRsMax, leastCIDRs, mostCIDRs},
		{"bpf-ct-global-tcp-max", c.FlowsMax, leastFlows, mostFlows},
		{"bpf-lb-map-max", c.ServicesMax, leastServices, mostServices},
		{"bpf-lb-affinity-map-max", c.AffinityMax, leastServices, mostServices},
		{"bpf-lb-maglev-map-max", c.MaglevTables, 1, mostTables},
		{"bpf-nat-global-max", c.NatMax, leastNat, mostNat},
	} {
		if one.value < one.least || one.value > one.most {
			return fmt.Errorf("--%s=%d: want %d to %d", one.flag, one.value, one.least, one.most)
		}
	}
	return nil
}

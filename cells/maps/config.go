package maps

import (
	"fmt"

	"github.com/spf13/pflag"
)

// Config is what was typed.
type Config struct {
	PolicyMax int `mapstructure:"bpf-policy-map-max"`
	FlowsMax  int `mapstructure:"bpf-ct-global-tcp-max"`
}

// DefaultConfig are the defaults.
var DefaultConfig = Config{PolicyMax: 65536, FlowsMax: 131072}

// Bounds of the size of the map policy: what one policy of a few rules needs, and what takes 100 MB.
const (
	leastPolicy = 256
	mostPolicy  = 1 << 20
)

// Bounds of the size of the maps of established flows: a small edge node, and what takes 2 GB a family.
const (
	leastFlows = 1024
	mostFlows  = 16 << 20
)

// rangesShare is how many entries policy has for each of policy_ranges: most ports are single ones.
const rangesShare = 4

// Flags registers the flags.
func (c Config) Flags(flags *pflag.FlagSet) {
	flags.Int("bpf-policy-map-max", c.PolicyMax, fmt.Sprintf("Entries that all policies of this node share, %d to %d; ranges of "+
		"ports have a quarter as many of their own", leastPolicy, mostPolicy))
	flags.Int("bpf-ct-global-tcp-max", c.FlowsMax, fmt.Sprintf("Established flows of each address family, of all protocols, %d to %d",
		leastFlows, mostFlows))
}

// check says what is wrong with what was typed.
func (c Config) check() error {
	if c.PolicyMax < leastPolicy || c.PolicyMax > mostPolicy {
		return fmt.Errorf("--bpf-policy-map-max=%d: want %d to %d", c.PolicyMax, leastPolicy, mostPolicy)
	}
	if c.FlowsMax < leastFlows || c.FlowsMax > mostFlows {
		return fmt.Errorf("--bpf-ct-global-tcp-max=%d: want %d to %d", c.FlowsMax, leastFlows, mostFlows)
	}
	return nil
}

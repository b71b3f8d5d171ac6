package mtu

import (
	"fmt"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/spf13/pflag"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/tables/mtus"
)

// Cell computes the MTU of pod links and of routes of pods. It is the only writer of the table mtus.
var Cell = cell.Module("mtu", "Size of the packets of pods",
	cell.Config(DefaultConfig),
	cell.ProvidePrivate(
		mtus.NewTable, // only this cell writes
		newSettings,   // checked flag
	),
	cell.Provide(statedb.RWTable[mtus.MTU].ToTable),
	cell.Invoke(registerController),
)

// Config configures the MTU of pod links.
type Config struct {
	MTU int `mapstructure:"mtu"`
}

// DefaultConfig takes the MTU from a device.
var DefaultConfig = Config{}

func (c Config) Flags(flags *pflag.FlagSet) {
	flags.Int("mtu", c.MTU, "MTU of pod links in bytes; 0: the MTU of the device with the node's address or default route")
}

// limit is the largest MTU of a veth.
const limit = 65535

// smallest is the minimum MTU of a link with IPv6 (RFC 8200).
const smallest = 1280

// settings is the checked form of [Config].
type settings struct {
	flag     int
	overhead int // bytes that the tunnel between nodes adds to a packet; 0 without one
}

func newSettings(c Config, a agentconfig.Agent) (settings, error) {
	if c.MTU != 0 && (c.MTU < smallest || c.MTU > limit) {
		return settings{}, fmt.Errorf("--mtu=%d: must be 0 or from %d to %d", c.MTU, smallest, limit)
	}
	return settings{flag: c.MTU, overhead: a.TunnelOverhead()}, nil
}

package mtu

import (
	"fmt"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/spf13/pflag"

	agent "github.com/waggle-net/waggle/pkg/settings"
	tables "github.com/waggle-net/waggle/pkg/tables/mtus"
)

// Cell computes the MTU of pod links and routes. It is the only writer of mtus.
var Cell = cell.Module("mtu", "Size of the packets of pods",
	cell.Config(DefaultConfig),
	cell.ProvidePrivate(
		tables.NewTable, // only this cell writes
		newSettings,     // the flag, checked
	),
	cell.Provide(statedb.RWTable[tables.MTU].ToTable),
	cell.Invoke(registerController),
)

// Config is what was typed.
type Config struct {
	MTU int `mapstructure:"mtu"`
}

// DefaultConfig reads the MTU from a device.
var DefaultConfig = Config{}

// Flags registers the flag.
func (c Config) Flags(flags *pflag.FlagSet) {
	flags.Int("mtu", c.MTU, "MTU of pod links in bytes; 0: that of the device with the node's address or default route")
}

// limit is the largest MTU of a veth.
const limit = 65535

// smallest is what IPv6 asks of every link.
const smallest = 1280

// settings is the checked form of [Config].
type settings struct {
	flag     int
	overhead int // bytes that the tunnel between nodes adds to a packet; 0 without one
}

func newSettings(c Config, a agent.Agent) (settings, error) {
	if c.MTU != 0 && (c.MTU < smallest || c.MTU > limit) {
		return settings{}, fmt.Errorf("--mtu=%d: must be 0 or from %d to %d", c.MTU, smallest, limit)
	}
	return settings{flag: c.MTU, overhead: a.TunnelOverhead()}, nil
}

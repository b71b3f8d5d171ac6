package podmtu

import "github.com/spf13/pflag"

// Config is what was typed.
type Config struct {
	Enabled bool `mapstructure:"enable-pod-mtu-updates"`
}

// DefaultConfig needs no more capabilities than all else.
var DefaultConfig = Config{}

// Flags registers the flag.
func (c Config) Flags(flags *pflag.FlagSet) {
	flags.Bool("enable-pod-mtu-updates", c.Enabled,
		"Change the MTU of running pods with that of the node; the agent then needs the capability SYS_ADMIN")
}

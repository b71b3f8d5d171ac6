package podmtu

import "github.com/spf13/pflag"

// Config configures the updates of running pods.
type Config struct {
	Enabled bool `mapstructure:"enable-pod-mtu-updates"`
}

// DefaultConfig needs no additional capability.
var DefaultConfig = Config{}

func (c Config) Flags(flags *pflag.FlagSet) {
	flags.Bool("enable-pod-mtu-updates", c.Enabled,
		"Change the MTU of running pods with the MTU of the node; requires the capability SYS_ADMIN")
}

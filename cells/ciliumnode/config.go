package ciliumnode

import "github.com/spf13/pflag"

// Config is what was typed.
type Config struct {
	AutoCreate bool `mapstructure:"auto-create-cilium-node-resource"`
}

// DefaultConfig are the defaults.
var DefaultConfig = Config{AutoCreate: true}

// Flags registers the flags.
func (c Config) Flags(flags *pflag.FlagSet) {
	flags.Bool("auto-create-cilium-node-resource", c.AutoCreate, "Make the CiliumNode of this node; without, one that is there is still kept up to date")
}

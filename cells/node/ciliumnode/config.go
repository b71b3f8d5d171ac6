package ciliumnode

import "github.com/spf13/pflag"

// Config configures the creation of the CiliumNode.
type Config struct {
	AutoCreate bool `mapstructure:"auto-create-cilium-node-resource"`
}

// DefaultConfig creates the CiliumNode.
var DefaultConfig = Config{AutoCreate: true}

func (c Config) Flags(flags *pflag.FlagSet) {
	flags.Bool("auto-create-cilium-node-resource", c.AutoCreate, "Create the CiliumNode of this node; false only keeps an existing one up to date")
}

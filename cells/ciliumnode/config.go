package ciliumnode

import "github.com/spf13/pflag"

// Config configures the creation of the CiliumNode.
type Config struct {
	AutoCreate bool `mapstructure:"auto-create-cilium-node-resource"`
}

// DefaultConfig creates the CiliumNode.
var DefaultConfig = Config{AutoCreate: true}

// Flags registers the flag of the cell.
func (c Config) Flags(flags *pflag.FlagSet) {
	flags.Bool("auto-create-cilium-node-resource", c.AutoCreate, "Make the CiliumNode of this node; without, one that is there is still kept up to date")
}

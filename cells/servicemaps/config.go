package servicemaps

import "github.com/spf13/pflag"

// Config is what was typed.
type Config struct {
	Seed string `mapstructure:"bpf-lb-maglev-hash-seed"`
}

// DefaultConfig are the defaults. The seed is Cilium's; the tables that come of it are not.
var DefaultConfig = Config{Seed: "JLfvgnHc2kaSUFaI"}

// Flags registers the flags.
func (c Config) Flags(flags *pflag.FlagSet) {
	flags.String("bpf-lb-maglev-hash-seed", c.Seed, "12 bytes in base64, of which Maglev's tables are made with the backends; the same on all nodes")
}

package servicemaps

import "github.com/spf13/pflag"

// Config holds the seed of Maglev tables, 12 bytes in base64.
type Config struct {
	Seed string `mapstructure:"bpf-lb-maglev-hash-seed"`
}

// DefaultConfig holds Cilium's default seed; the tables that result from it differ from Cilium's.
var DefaultConfig = Config{Seed: "JLfvgnHc2kaSUFaI"}

func (c Config) Flags(flags *pflag.FlagSet) {
	flags.String("bpf-lb-maglev-hash-seed", c.Seed, "Seed of the Maglev tables, 12 bytes in base64; must be the same on all nodes")
}

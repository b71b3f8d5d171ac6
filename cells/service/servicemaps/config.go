package servicemaps

import (
	"fmt"

	"github.com/spf13/pflag"
)

// Config configures the contents of the maps. The first flag has the name of Cilium.
type Config struct {
	Seed string `mapstructure:"bpf-lb-maglev-hash-seed"` // 12 bytes in base64
	// NamespaceEntries is a number of entries; -1 for half of each map, 0 for no quota.
	NamespaceEntries int `mapstructure:"service-entries-per-namespace"`
}

// DefaultConfig holds Cilium's default seed; the tables that result from it differ from Cilium's.
var DefaultConfig = Config{Seed: "JLfvgnHc2kaSUFaI", NamespaceEntries: halfOfMap}

// halfOfMap is the value of --service-entries-per-namespace that means half of each map.
const halfOfMap = -1

func (c Config) Flags(flags *pflag.FlagSet) {
	flags.String("bpf-lb-maglev-hash-seed", c.Seed, "Seed of the Maglev tables, 12 bytes in base64; must be the same on all nodes")
	flags.Int("service-entries-per-namespace", c.NamespaceEntries, "Frontends and backends, and slots in proportion, of a namespace's Services and host ports; "+
		"-1: half of --bpf-lb-map-max, 0: no quota")
}

// validate checks the quota.
func (c Config) validate() error {
	if c.NamespaceEntries < halfOfMap {
		return fmt.Errorf("--service-entries-per-namespace=%d: use a positive number, 0 for no limit, or -1 for half of each map", c.NamespaceEntries)
	}
	return nil
}

package linkreaper

import (
	"fmt"
	"time"

	"github.com/spf13/pflag"
)

// Config configures the collector of links without an endpoint.
type Config struct {
	// Interval is the time between two scans for links without an endpoint; a link is deleted after five scans in a row found it. 0 disables scans.
	Interval time.Duration `mapstructure:"pod-link-gc-interval"`
}

// DefaultConfig holds the default interval.
var DefaultConfig = Config{Interval: 30 * time.Second}

func (c Config) Flags(flags *pflag.FlagSet) {
	flags.Duration("pod-link-gc-interval", c.Interval,
		"Time between scans for pod links without an endpoint; the fifth in a row deletes them; below 23s slow ADDs fail; 0 disables scans")
}

func (c Config) validate() error {
	if c.Interval < 0 {
		return fmt.Errorf("--pod-link-gc-interval=%s: must not be negative", c.Interval)
	}
	return nil
}

package linkreaper

import (
	"fmt"
	"time"

	"github.com/spf13/pflag"
)

// Config is what was typed.
type Config struct {
	// Interval is the time between two looks for links without an endpoint; one goes when five looks in a row found it.
	Interval time.Duration `mapstructure:"pod-link-gc-interval"`
}

// DefaultConfig are the defaults.
var DefaultConfig = Config{Interval: 30 * time.Second}

// Flags registers the flags.
func (c Config) Flags(flags *pflag.FlagSet) {
	flags.Duration("pod-link-gc-interval", c.Interval,
		"Time between two looks for links of pods that belong to no endpoint; what five looks in a row find is deleted; below 23s that may be "+
			"the link of an ADD that is slow, which then fails; 0 never looks")
}

func (c Config) validate() error {
	if c.Interval < 0 {
		return fmt.Errorf("--pod-link-gc-interval=%s: must not be negative", c.Interval)
	}
	return nil
}

package endpointmanager

import (
	"fmt"
	"time"

	"github.com/spf13/pflag"
)

// Config is what was typed.
type Config struct {
	// Interval is the time between two looks at endpoints whose pods may have ended without a DEL; 0 means no look.
	Interval time.Duration `mapstructure:"endpoint-gc-interval"`
}

// DefaultConfig are the defaults.
var DefaultConfig = Config{Interval: 10 * time.Second}

// Flags registers the flags.
func (c Config) Flags(flags *pflag.FlagSet) {
	flags.Duration("endpoint-gc-interval", c.Interval, "Time between the two looks at an endpoint whose link is gone, after which it is "+
		"removed when it is proven that its pod has ended; 0 removes none")
}

func (c Config) check() error {
	if c.Interval < 0 || c.Interval > 0 && c.Interval < time.Second {
		return fmt.Errorf("--endpoint-gc-interval=%s: use 0, or 1s and more", c.Interval)
	}
	return nil
}

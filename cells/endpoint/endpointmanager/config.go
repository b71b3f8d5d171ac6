package endpointmanager

import (
	"fmt"
	"time"

	"github.com/spf13/pflag"
)

// Config configures the collector of endpoints whose pods have ended.
type Config struct {
	// Interval is the time between two scans for endpoints whose pods may have ended without a DEL; 0 disables scans.
	Interval time.Duration `mapstructure:"endpoint-gc-interval"`
}

// DefaultConfig scans every 10 seconds.
var DefaultConfig = Config{Interval: 10 * time.Second}

func (c Config) Flags(flags *pflag.FlagSet) {
	flags.Duration("endpoint-gc-interval", c.Interval, "Time between two checks of an endpoint without a link; it is removed "+
		"if both prove that its pod has ended; 0 disables removal")
}

func (c Config) check() error {
	if c.Interval < 0 || c.Interval > 0 && c.Interval < time.Second {
		return fmt.Errorf("--endpoint-gc-interval=%s: use 0, or 1s and more", c.Interval)
	}
	return nil
}

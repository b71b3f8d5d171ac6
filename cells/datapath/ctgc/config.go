package ctgc

import (
	"fmt"
	"time"

	"github.com/spf13/pflag"
)

const (
	firstInterval = 5 * time.Minute
	minInterval   = 10 * time.Second
	maxInterval   = 30 * time.Minute
)

// Config holds the interval between passes.
type Config struct {
	Interval    time.Duration `mapstructure:"conntrack-gc-interval"`
	MaxInterval time.Duration `mapstructure:"conntrack-gc-max-interval"`
}

// DefaultConfig adapts the interval to the number of dead flows.
var DefaultConfig = Config{MaxInterval: maxInterval}

func (c Config) Flags(flags *pflag.FlagSet) {
	flags.Duration("conntrack-gc-interval", c.Interval,
		"Interval of the garbage collection of expired flows, at least 10s; 0 adapts it to their number")
	flags.Duration("conntrack-gc-max-interval", c.MaxInterval, "Maximum of the adapted interval, at least 10s")
}

func (c Config) check() error {
	if c.Interval != 0 && c.Interval < minInterval {
		return fmt.Errorf("--conntrack-gc-interval=%s: want 0 or at least %s", c.Interval, minInterval)
	}
	if c.MaxInterval < minInterval {
		return fmt.Errorf("--conntrack-gc-max-interval=%s: want at least %s", c.MaxInterval, minInterval)
	}
	return nil
}

// pace is the time until the next pass that no signal or removal requests.
type pace struct {
	Config
	current time.Duration
}

func newPace(c Config) pace {
	if c.Interval != 0 {
		return pace{c, c.Interval}
	}
	return pace{c, min(firstInterval, c.MaxInterval)}
}

// adapt adjusts the interval. The argument deleted is the largest fraction of a map that a pass has deleted, after is the time since the previous pass. If that
// is less than the interval, the fraction is scaled up to a whole interval.
func (p *pace) adapt(deleted float64, after time.Duration) {
	if p.Interval != 0 || deleted == 0 {
		return
	}
	if after > 0 && after < p.current {
		deleted *= float64(p.current) / float64(after)
	}
	switch {
	case deleted > 0.25:
		p.current = time.Duration(float64(p.current) * (1 - min(deleted, 0.9)))
	case deleted < 0.05:
		p.current = p.current * 3 / 2
	}
	p.current = min(max(p.current, minInterval), p.MaxInterval)
}

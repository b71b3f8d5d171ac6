package healthz

import (
	"fmt"

	"github.com/cilium/hive/cell"
	"github.com/spf13/pflag"
)

// Cell answers probes.
var Cell = cell.Module("healthz", "Health port on loopback",
	cell.Config(DefaultConfig),
	cell.ProvidePrivate(
		newPort,    // the checked flag
		newHandler, // needs no port
	),
	cell.Invoke(register), // start hook: the port, one listener for each family
)

// Config is what was typed.
type Config struct {
	Port int `mapstructure:"agent-health-port"`
}

// DefaultConfig are the defaults.
var DefaultConfig = Config{Port: 9879}

// Flags registers the flags.
func (c Config) Flags(flags *pflag.FlagSet) {
	flags.Int("agent-health-port", c.Port, "TCP port on 127.0.0.1 and ::1 for probes of health; 0 for none")
}

// port is the checked flag.
type port int

func newPort(c Config) (port, error) {
	if c.Port < 0 || c.Port > 65535 {
		return 0, fmt.Errorf("--agent-health-port=%d: use 1 to 65535, or 0 for none", c.Port)
	}
	return port(c.Port), nil
}

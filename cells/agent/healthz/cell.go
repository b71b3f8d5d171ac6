package healthz

import (
	"fmt"

	"github.com/cilium/hive/cell"
	"github.com/spf13/pflag"
)

// Cell answers the probes of kubelet on the loopback addresses.
var Cell = cell.Module("healthz", "Health port on loopback",
	cell.Config(DefaultConfig),
	cell.ProvidePrivate(
		newPort,    // the checked flag
		newHandler, // answers without a port
	),
	cell.Invoke(register), // start hook that opens the port, with one listener for each family
)

// Config configures the health port.
type Config struct {
	Port int `mapstructure:"agent-health-port"`
}

// DefaultConfig uses the port of Cilium's agent.
var DefaultConfig = Config{Port: 9879}

func (c Config) Flags(flags *pflag.FlagSet) {
	flags.Int("agent-health-port", c.Port, "TCP port on 127.0.0.1 and ::1 for health probes; 0 for none")
}

// port is the checked flag; 0 for none.
type port int

func newPort(c Config) (port, error) {
	if c.Port < 0 || c.Port > 65535 {
		return 0, fmt.Errorf("--agent-health-port=%d: use 1 to 65535, or 0 for none", c.Port)
	}
	return port(c.Port), nil
}

package ciliumendpoints

import (
	"fmt"

	"github.com/spf13/pflag"
)

// Config is what was typed.
type Config struct {
	Disable bool    `mapstructure:"disable-endpoint-crd"`
	QPS     float64 `mapstructure:"ciliumendpoint-write-qps"`
	Burst   int     `mapstructure:"ciliumendpoint-write-burst"`
}

// DefaultConfig are the defaults: the pods of one burst at once, and few enough a second that thousands of nodes together
// do not hurt an API server.
var DefaultConfig = Config{QPS: 10, Burst: 30}

// Flags registers the flags.
func (c Config) Flags(flags *pflag.FlagSet) {
	flags.Bool("disable-endpoint-crd", c.Disable, "Write no CiliumEndpoint objects; those that exist stay")
	flags.Float64("ciliumendpoint-write-qps", c.QPS, "Writes of CiliumEndpoint objects a second")
	flags.Int("ciliumendpoint-write-burst", c.Burst, "Writes of CiliumEndpoint objects at once")
}

func (c Config) check() error {
	if c.QPS <= 0 || c.Burst < 1 {
		return fmt.Errorf("--ciliumendpoint-write-qps=%g, --ciliumendpoint-write-burst=%d: both must be positive", c.QPS, c.Burst)
	}
	return nil
}

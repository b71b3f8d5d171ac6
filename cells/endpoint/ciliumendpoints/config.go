package ciliumendpoints

import (
	"fmt"

	"github.com/spf13/pflag"
)

// Config configures whether CiliumEndpoint objects are written, and the rate of writes.
type Config struct {
	Disable bool    `mapstructure:"disable-endpoint-crd"`
	QPS     float64 `mapstructure:"ciliumendpoint-write-qps"`
	Burst   int     `mapstructure:"ciliumendpoint-write-burst"`
}

// DefaultConfig allows the pods of one burst at once. The rate is low enough that thousands of nodes together do not overload an API server.
var DefaultConfig = Config{QPS: 10, Burst: 30}

func (c Config) Flags(flags *pflag.FlagSet) {
	flags.Bool("disable-endpoint-crd", c.Disable, "Write no CiliumEndpoint objects; existing ones are kept")
	flags.Float64("ciliumendpoint-write-qps", c.QPS, "Maximum rate of writes of CiliumEndpoint objects, per second")
	flags.Int("ciliumendpoint-write-burst", c.Burst, "Maximum burst of writes of CiliumEndpoint objects")
}

func (c Config) check() error {
	if c.QPS <= 0 || c.Burst < 1 {
		return fmt.Errorf("--ciliumendpoint-write-qps=%g, --ciliumendpoint-write-burst=%d: both must be positive", c.QPS, c.Burst)
	}
	return nil
}

package servicehealth

import (
	"fmt"
	"net"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/spf13/pflag"

	"github.com/waggle-net/waggle/pkg/agentconfig"
)

// Cell answers health checks of load balancers.
var Cell = cell.Module("service-health", "Health checks of load balancers",
	cell.Config(DefaultConfig),
	cell.ProvidePrivate(
		newTable,     // only this cell writes
		newListeners, // the sockets
		newRules,     // frontends that the datapath does not have
	),
	cell.Provide(statedb.RWTable[*port].ToTable),
	cell.Provide(Config.listener), // the port of /healthz, which no Service may use
	cell.Invoke(
		registerController, // services into ports
		registerReconciler, // ports into sockets
		registerRules,      // pending frontends
		registerHealthz,    // whether the node serves Services
	),
)

// Config configures the health check ports and the address of /healthz.
type Config struct {
	HealthCheckNodePort bool   `mapstructure:"enable-health-check-nodeport"`
	HealthzAddress      string `mapstructure:"kube-proxy-replacement-healthz-bind-address"`
}

// DefaultConfig has Cilium's defaults.
var DefaultConfig = Config{HealthCheckNodePort: true}

func (c Config) Flags(flags *pflag.FlagSet) {
	flags.Bool("enable-health-check-nodeport", c.HealthCheckNodePort,
		"Serve the health check node ports of Services, from which load balancers learn which nodes have backends")
	flags.String("kube-proxy-replacement-healthz-bind-address", c.HealthzAddress,
		"Address (host:port, kube-proxy's is 0.0.0.0:10256) on which /healthz reports whether this node serves Services; empty disables the server")
}

func (c Config) listener() agentconfig.ListenerOut {
	return agentconfig.NewListener("kube-proxy-replacement-healthz-bind-address", c.HealthzAddress)
}

// check rejects an address that is not host:port.
func (c Config) check() error {
	if c.HealthzAddress == "" {
		return nil
	}
	if _, _, err := net.SplitHostPort(c.HealthzAddress); err != nil {
		return fmt.Errorf("--kube-proxy-replacement-healthz-bind-address=%q: want host:port, such as 0.0.0.0:10256: %w", c.HealthzAddress, err)
	}
	return nil
}

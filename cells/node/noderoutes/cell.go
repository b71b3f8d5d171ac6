package noderoutes

import (
	"errors"
	"fmt"

	"github.com/cilium/hive/cell"
	"github.com/spf13/pflag"

	"github.com/waggle-net/waggle/pkg/agentconfig"
)

// Cell requests routes to the pods of other nodes.
var Cell = cell.Module("node-routes", "Routes to the pods of other nodes",
	cell.Config(DefaultConfig),
	cell.Invoke(registerController), // computes routes to next hops or into the tunnel
)

// Config configures the routes without a tunnel.
type Config struct {
	AutoDirectNodeRoutes         bool `mapstructure:"auto-direct-node-routes"`
	DirectRoutingSkipUnreachable bool `mapstructure:"direct-routing-skip-unreachable"`
}

// DefaultConfig requests no routes, as Cilium does.
var DefaultConfig = Config{}

func (c Config) Flags(flags *pflag.FlagSet) {
	flags.Bool("auto-direct-node-routes", c.AutoDirectNodeRoutes,
		"Add a route to the pods of each node on the same link, with that node as gateway")
	flags.Bool("direct-routing-skip-unreachable", c.DirectRoutingSkipUnreachable,
		"Skip nodes behind a gateway instead of reporting an error; needs --auto-direct-node-routes")
}

// validate returns an error for contradicting flags.
func (c Config) validate(a agentconfig.Agent) error {
	if c.AutoDirectNodeRoutes && a.Tunnel() {
		return fmt.Errorf("--auto-direct-node-routes contradicts --routing-mode=%s, which needs no routes to nodes: remove it, or set --routing-mode=%s",
			a.RoutingMode(), agentconfig.RoutingNative)
	}
	if c.DirectRoutingSkipUnreachable && !c.AutoDirectNodeRoutes {
		return errors.New("--direct-routing-skip-unreachable has no effect without --auto-direct-node-routes: set both flags, or remove it")
	}
	return nil
}

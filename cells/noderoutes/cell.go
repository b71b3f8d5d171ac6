package noderoutes

import (
	"errors"

	"github.com/cilium/hive/cell"
	"github.com/spf13/pflag"
)

// Cell wants the routes.
var Cell = cell.Module("node-routes", "Routes to the pods of other nodes",
	cell.Config(DefaultConfig),
	cell.Invoke(registerController), // nodes into routes
)

// Config holds the flags.
type Config struct {
	AutoDirectNodeRoutes         bool `mapstructure:"auto-direct-node-routes"`
	DirectRoutingSkipUnreachable bool `mapstructure:"direct-routing-skip-unreachable"`
}

// DefaultConfig wants no routes, as Cilium.
var DefaultConfig = Config{}

// Flags registers the flags.
func (c Config) Flags(flags *pflag.FlagSet) {
	flags.Bool("auto-direct-node-routes", c.AutoDirectNodeRoutes,
		"Add a route to the pods of each node on the same link, by way of that node")
	flags.Bool("direct-routing-skip-unreachable", c.DirectRoutingSkipUnreachable,
		"With --auto-direct-node-routes, leave out nodes behind a gateway without calling that a fault")
}

// validate refuses a combination that has no meaning.
func (c Config) validate() error {
	if c.DirectRoutingSkipUnreachable && !c.AutoDirectNodeRoutes {
		return errors.New("--direct-routing-skip-unreachable says which direct routes to leave out, but none are wanted: set --auto-direct-node-routes as well, or remove the flag")
	}
	return nil
}

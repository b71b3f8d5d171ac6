package apiserver

import (
	"github.com/cilium/hive/cell"
	"github.com/spf13/pflag"
)

// Cell serves the API.
var Cell = cell.Module("api-server", "REST API on a unix socket",
	cell.Config(DefaultConfig),
	cell.ProvidePrivate(
		newNodeClients, // what clients of /cluster/nodes have seen
		newHandler,     // routes, limits, panics; needs no socket
	),
	cell.Invoke(register), // start hook: the socket
)

// Config is what was typed.
type Config struct {
	SocketPath string `mapstructure:"socket-path"`
}

// DefaultConfig are the defaults.
var DefaultConfig = Config{}

// Flags registers the flags.
func (c Config) Flags(flags *pflag.FlagSet) {
	flags.String("socket-path", c.SocketPath, "Path of the API's socket; default: waggle.sock in the state directory")
}

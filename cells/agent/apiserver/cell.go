package apiserver

import (
	"github.com/cilium/hive/cell"
	"github.com/spf13/pflag"
)

// Cell serves the REST API.
var Cell = cell.Module("api-server", "REST API on a unix socket",
	cell.Config(DefaultConfig),
	cell.ProvidePrivate(
		newNodeClients, // the rows that clients of /cluster/nodes have received
		newHandler,     // routes, limits and panic recovery, without a socket
	),
	cell.Invoke(register), // start hook: opens the socket
)

// Config configures the socket of the API.
type Config struct {
	SocketPath string `mapstructure:"socket-path"`
}

// DefaultConfig leaves the path of the socket to the state directory.
var DefaultConfig = Config{}

func (c Config) Flags(flags *pflag.FlagSet) {
	flags.String("socket-path", c.SocketPath, "Path of the API's socket; default: waggle.sock in the state directory")
}

package shell

import (
	"log/slog"

	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/spf13/pflag"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/shellwire"
)

// Cell serves the shell of the agent on a unix socket.
var Cell = cell.Module("shell", "Shell on a unix socket",
	cell.Config(DefaultConfig),
	cell.Invoke(register), // opens the socket in a start hook
)

// Config configures the socket of the shell.
type Config struct {
	SocketPath string `mapstructure:"shell-socket-path"`
}

// DefaultConfig puts the socket into the state directory.
var DefaultConfig = Config{}

func (c Config) Flags(flags *pflag.FlagSet) {
	flags.String("shell-socket-path", c.SocketPath, "Path of the shell's socket; default: shell.sock in the state directory")
}

type params struct {
	cell.In

	Lifecycle cell.Lifecycle
	Jobs      job.Group
	Log       *slog.Logger
	Config    Config
	Settings  agentconfig.Agent
	Commands  hive.ScriptCmds
	Printer   shellwire.HivePrinter `optional:"true"` // from the owner of the hive
}

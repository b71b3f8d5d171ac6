package monitor

import (
	"fmt"
	"path/filepath"
	"runtime"

	"github.com/spf13/pflag"

	"github.com/waggle-net/waggle/pkg/agentconfig"
)

// Config configures the monitor socket and the queues of its listeners.
type Config struct {
	MonitorSocketPath string `mapstructure:"monitor-socket-path"`
	MonitorQueueSize  int    `mapstructure:"monitor-queue-size"`
}

var defaultConfig = Config{}

func (c Config) Flags(flags *pflag.FlagSet) {
	flags.String("monitor-socket-path", c.MonitorSocketPath,
		"Socket that streams events of the datapath; default: monitor1_2.sock in --state-dir")
	flags.Int("monitor-queue-size", c.MonitorQueueSize,
		"Maximum number of queued events per listener of the monitor; default: 1024 per CPU, at most 16384")
}

// derived is the checked form of [Config].
type derived struct {
	path  string // of the socket
	queue int    // events, at least 1
}

const (
	socketName    = "monitor1_2.sock"
	queuePerCPU   = 1024
	maxQueue      = 16384
	maxTypedQueue = 1 << 20 // an event takes some 200 bytes, for each listener
)

func derive(c Config, agent agentconfig.Agent) (derived, error) {
	d := derived{path: c.MonitorSocketPath, queue: c.MonitorQueueSize}
	if d.path == "" {
		d.path = filepath.Join(agent.StateDir, socketName)
	}
	if d.queue < 0 || d.queue > maxTypedQueue {
		return d, fmt.Errorf("--monitor-queue-size=%d: must be between 1 and %d, or 0 for the default", d.queue, maxTypedQueue)
	}
	if d.queue == 0 {
		d.queue = min(runtime.NumCPU()*queuePerCPU, maxQueue)
	}
	return d, nil
}

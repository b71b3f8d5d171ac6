package pprof

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"github.com/cilium/hive/cell"
	"github.com/spf13/pflag"

	"github.com/waggle-net/waggle/pkg/agentconfig"
)

// Cell serves profiles and metrics of the Go runtime.
var Cell = cell.Module("pprof", "Profiles and metrics of the Go runtime",
	cell.Config(DefaultConfig),
	cell.ProvidePrivate(newOptions), // the checked flags
	cell.Provide(options.listener),  // port that no Service may use
	cell.Invoke(registerServer),     // start hook that opens the port
)

// Config configures the server of profiles. The flags have the names and defaults of Cilium's agent.
type Config struct {
	Enable               bool   `mapstructure:"pprof"`
	Address              string `mapstructure:"pprof-address"`
	Port                 int    `mapstructure:"pprof-port"`
	BlockProfileRate     int    `mapstructure:"pprof-block-profile-rate"`
	MutexProfileFraction int    `mapstructure:"pprof-mutex-profile-fraction"`
}

// DefaultConfig serves nothing.
var DefaultConfig = Config{Address: localhost, Port: 6060}

// localhost means 127.0.0.1. It is not resolved: a node may lack an entry for it, or have another one.
const localhost = "localhost"

func (c Config) Flags(flags *pflag.FlagSet) {
	flags.Bool("pprof", c.Enable, "Serve profiles of the agent at /debug/pprof/, and all metrics of the Go runtime at /metrics")
	flags.String("pprof-address", c.Address, "Address on which profiles are served: localhost or an IP address; each client that reaches it can read them")
	flags.Int("pprof-port", c.Port, "TCP port on which profiles are served")
	flags.Int("pprof-block-profile-rate", c.BlockProfileRate,
		"Record about one blocking event per this many nanoseconds of blocking, 1 for all events, which is slow; 0 for none")
	flags.Int("pprof-mutex-profile-fraction", c.MutexProfileFraction, "Record one of this many contention events of mutexes, 1 for all; 0 for none")
}

// options are the checked flags.
type options struct {
	addr  netip.AddrPort // not valid if nothing is served
	block int            // nanoseconds of blocking for each recorded event; 0 for none
	mutex int            // contention events for each recorded event; 0 for none
}

func newOptions(c Config) (options, error) {
	if !c.Enable {
		return options{}, nil
	}
	addr := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	if c.Address != localhost {
		var err error
		if addr, err = netip.ParseAddr(c.Address); err != nil {
			return options{}, fmt.Errorf("--pprof-address=%q: use %s or an IP address", c.Address, localhost)
		}
	}
	if c.Port < 0 || c.Port > 65535 {
		return options{}, fmt.Errorf("--pprof-port=%d: use 1 to 65535, or 0 for any free port", c.Port)
	}
	if c.BlockProfileRate < 0 {
		return options{}, fmt.Errorf("--pprof-block-profile-rate=%d: use a number of nanoseconds, or 0 for no profile", c.BlockProfileRate)
	}
	if c.MutexProfileFraction < 0 {
		return options{}, fmt.Errorf("--pprof-mutex-profile-fraction=%d: use a number of events, or 0 for no profile", c.MutexProfileFraction)
	}
	return options{netip.AddrPortFrom(addr.Unmap(), uint16(c.Port)), c.BlockProfileRate, c.MutexProfileFraction}, nil
}

func (o options) enabled() bool { return o.addr.IsValid() }

// local reports whether only processes in the network namespace of the agent reach the server.
func (o options) local() bool { return o.addr.Addr().IsLoopback() }

// listener returns the port, which no external IP of a Service may use. No Service can use a loopback address.
func (o options) listener() agentconfig.ListenerOut {
	value := ""
	if o.enabled() && !o.local() {
		value = net.JoinHostPort(o.addr.Addr().String(), strconv.Itoa(int(o.addr.Port())))
	}
	return agentconfig.NewListener("pprof-port", value)
}

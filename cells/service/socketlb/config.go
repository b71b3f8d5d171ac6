package socketlb

import (
	"fmt"
	"path/filepath"

	"github.com/spf13/pflag"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/socketlboptions"
)

// Config configures the translation of services at the socket. The flags have the names of Cilium's flags.
type Config struct {
	Sock           bool   `mapstructure:"bpf-lb-sock"`
	HostOnly       bool   `mapstructure:"bpf-lb-sock-hostns-only"`
	BindProtection bool   `mapstructure:"node-port-bind-protection"`
	Cgroup         string `mapstructure:"cgroup-root"`
}

// DefaultConfig translates services for all sockets and enables the bind protection.
var DefaultConfig = Config{Sock: true, BindProtection: true}

func (c Config) Flags(flags *pflag.FlagSet) {
	flags.Bool("bpf-lb-sock", c.Sock, "Translate Services at the socket, before a packet is sent; only with --kube-proxy-replacement")
	flags.Bool("bpf-lb-sock-hostns-only", c.HostOnly, "Translate only sockets of the host; programs on pod links translate packets of pods")
	flags.Bool("node-port-bind-protection", c.BindProtection, "Prevent processes of this node from binding a port that a Service uses on the node")
	flags.String("cgroup-root", c.Cgroup, "Directory of cgroup2 whose sockets are translated; default: the root of the machine")
}

func newOptions(c Config, agent agentconfig.Agent) (socketlboptions.Options, error) {
	o := socketlboptions.Options{Enabled: agent.KubeProxyReplacement && c.Sock, HostOnly: c.HostOnly, BindProtection: c.BindProtection}
	if c.Cgroup == "" {
		return o, nil
	}
	if !filepath.IsAbs(c.Cgroup) {
		return o, fmt.Errorf("--cgroup-root=%q: must be an absolute path", c.Cgroup)
	}
	o.Cgroup = filepath.Clean(c.Cgroup)
	return o, nil
}

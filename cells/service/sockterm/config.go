package sockterm

import "github.com/spf13/pflag"

// Config configures the sockets inside pods. The name of the flag is Cilium's.
type Config struct {
	Pods bool `mapstructure:"bpf-lb-sock-terminate-pod-connections"`
}

// DefaultConfig needs no additional capability.
var DefaultConfig = Config{}

func (c Config) Flags(flags *pflag.FlagSet) {
	flags.Bool("bpf-lb-sock-terminate-pod-connections", c.Pods,
		"Close connected sockets inside pods when their backend is removed; requires the capability SYS_ADMIN")
}

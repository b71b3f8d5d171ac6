package ipamallocator

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/ipalloc"
	"github.com/waggle-net/waggle/pkg/ipam"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
)

const (
	// minQuarantine is the minimum quarantine of an address, even when no other address is free.
	minQuarantine = 2 * time.Second

	retryMin = 100 * time.Millisecond
	retryMax = 10 * time.Second
)

// Config configures the pool, the allocation strategy and the quarantine of released addresses.
type Config struct {
	DefaultPool string        `mapstructure:"ipam-default-ip-pool"`
	Strategy    string        `mapstructure:"ipam-allocation-strategy"`
	Quarantine  time.Duration `mapstructure:"ipam-release-quarantine"`
}

// DefaultConfig holds the default settings.
var DefaultConfig = Config{
	DefaultPool: ipam.DefaultPool,
	Strategy:    string(ipalloc.Random),
	Quarantine:  30 * time.Second,
}

func (c Config) Flags(flags *pflag.FlagSet) {
	flags.String("ipam-default-ip-pool", c.DefaultPool, "Name of the pool of the node's pod CIDRs")
	flags.String("ipam-allocation-strategy", c.Strategy, "Order of allocation of free addresses: random or sequential")
	flags.Duration("ipam-release-quarantine", c.Quarantine, "Time in which a released address is not allocated to another owner")
}

// settings is the validated form of [Config].
type settings struct {
	pool       string
	strategy   ipalloc.Strategy
	quarantine time.Duration
	kubernetes bool // an API server exists, so the node's objects may contain its previous addresses
	health     bool // allocate a health address for waggle_host; without an API server no other node would learn it
}

func newSettings(c Config, of agentconfig.Agent, client *kubeapi.Client) (settings, error) {
	if c.DefaultPool == "" || strings.ContainsFunc(c.DefaultPool, notInName) {
		return settings{}, fmt.Errorf("--ipam-default-ip-pool=%q: use letters, digits, dots and dashes", c.DefaultPool)
	}
	strategy, err := ipalloc.ParseStrategy(c.Strategy)
	if err != nil {
		return settings{}, fmt.Errorf("--ipam-allocation-strategy: %w", err)
	}
	if c.Quarantine < 0 || c.Quarantine > time.Hour {
		return settings{}, fmt.Errorf("--ipam-release-quarantine=%v: use 0s to 1h", c.Quarantine)
	}
	return settings{c.DefaultPool, strategy, c.Quarantine, client != nil, client != nil && of.EndpointHealthChecking}, nil
}

func notInName(r rune) bool {
	return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '-')
}

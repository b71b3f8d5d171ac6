package policymaps

import (
	"fmt"

	"github.com/spf13/pflag"

	"github.com/waggle-net/waggle/pkg/policy"
)

// Config configures which policies are enforced on this node. The flags and their values have the names of Cilium, except l7-rules,
// policy-cidrs-per-namespace and policy-entries-per-namespace.
type Config struct {
	Enable         string   `mapstructure:"enable-policy"`
	CIDRMatch      []string `mapstructure:"policy-cidr-match-mode"`
	AllowLocalhost string   `mapstructure:"allow-localhost"`
	Kubernetes     bool     `mapstructure:"enable-k8s-networkpolicy"`
	Cilium         bool     `mapstructure:"enable-cilium-network-policy"`
	L7Rules        string   `mapstructure:"l7-rules"`
	NamespaceCIDRs int      `mapstructure:"policy-cidrs-per-namespace"`
	// NamespaceEntries is a number of entries; negative for half of the map, 0 for no quota.
	NamespaceEntries int `mapstructure:"policy-entries-per-namespace"`
}

// DefaultConfig has the default values of the flags.
var DefaultConfig = Config{Enable: string(policy.Default), AllowLocalhost: localhostAuto, Kubernetes: true, Cilium: true,
	L7Rules: string(policy.DenyL7), NamespaceCIDRs: 64000, NamespaceEntries: halfOfMap}

// halfOfMap is the value of --policy-entries-per-namespace that means half of the map.
const halfOfMap = -1

// Values of --allow-localhost and --policy-cidr-match-mode.
const (
	localhostAuto   = "auto" // always: probes of the kubelet must reach pods
	localhostAlways = "always"
	localhostPolicy = "policy"
	matchNodes      = "nodes"
)

func (c Config) Flags(flags *pflag.FlagSet) {
	flags.String("enable-policy", c.Enable, "Isolated endpoints: default (endpoints that a policy isolates), always (all endpoints) or "+
		"never (none, and no policy is enforced)")
	flags.StringSlice("policy-cidr-match-mode", c.CIDRMatch, "Peers that CIDR rules of Cilium's policies match in addition to peers outside "+
		"the cluster: nodes; empty for none")
	flags.String("allow-localhost", c.AllowLocalhost, "Whether the local host always reaches its endpoints: always, policy (only as "+
		"policies allow) or auto (always)")
	flags.Bool("enable-k8s-networkpolicy", c.Kubernetes, "Enforce NetworkPolicies of Kubernetes")
	flags.Bool("enable-cilium-network-policy", c.Cilium, "Enforce CiliumNetworkPolicies and CiliumClusterwideNetworkPolicies")
	flags.String("l7-rules", c.L7Rules, policy.L7RulesUsage)
	flags.Int("policy-cidrs-per-namespace", c.NamespaceCIDRs, "Quota of address ranges in the policies of one namespace on this node. All namespaces share "+
		"--bpf-cidr-map-max; 0 for no quota")
	flags.Int("policy-entries-per-namespace", c.NamespaceEntries, "Quota of entries, and in proportion of port ranges, of one namespace's policies "+
		"on this node; -1: half of --bpf-policy-map-max, 0: none")
}

// newOptions validates the configuration and returns the options for policies.
func newOptions(c Config) (policy.Options, error) {
	o := policy.Options{Mode: policy.Mode(c.Enable)}
	switch o.Mode {
	case policy.Default, policy.Always, policy.Never:
	default:
		return o, fmt.Errorf("--enable-policy=%q: use %s, %s or %s", c.Enable, policy.Default, policy.Always, policy.Never)
	}
	switch c.AllowLocalhost {
	case localhostAuto, localhostAlways:
		o.AllowLocalhost = true
	case localhostPolicy:
	default:
		return o, fmt.Errorf("--allow-localhost=%q: use %s, %s or %s", c.AllowLocalhost, localhostAuto, localhostAlways, localhostPolicy)
	}
	if c.NamespaceCIDRs < 0 {
		return o, fmt.Errorf("--policy-cidrs-per-namespace=%d: use a positive number, or 0 for no limit", c.NamespaceCIDRs)
	}
	if c.NamespaceEntries < halfOfMap {
		return o, fmt.Errorf("--policy-entries-per-namespace=%d: use a positive number, 0 for no limit, or -1 for half of the map", c.NamespaceEntries)
	}
	var err error
	if o.L7Rules, err = policy.ParseL7Mode(c.L7Rules); err != nil {
		return o, err
	}
	for _, mode := range c.CIDRMatch {
		switch mode {
		case matchNodes:
			o.CIDRMatchesNodes = true
		case "":
		default:
			return o, fmt.Errorf("--policy-cidr-match-mode=%q: use %s, or nothing", mode, matchNodes)
		}
	}
	return o, nil
}

// entryQuota returns the quota of one namespace in maps with a capacity; the zero value for none.
func (c Config) entryQuota(all capacity) capacity {
	n := c.NamespaceEntries
	if n == 0 {
		return capacity{}
	}
	if n < 0 {
		n = all.entries / 2
	}
	return capacity{max(n, 1), max(n*all.ranges/max(all.entries, 1), 1)}
}

package nodecidr

import (
	"fmt"
	"net/netip"

	"github.com/spf13/pflag"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
)

// auto is the value of a flag that leaves the choice to the agent.
const auto = "auto"

// Config configures the pod CIDRs of this node.
type Config struct {
	IPv4Range        string `mapstructure:"ipv4-range"`
	IPv6Range        string `mapstructure:"ipv6-range"`
	IPv4Node         string `mapstructure:"ipv4-node"`
	RequireIPv4      bool   `mapstructure:"k8s-require-ipv4-pod-cidr"`
	RequireIPv6      bool   `mapstructure:"k8s-require-ipv6-pod-cidr"`
	IPv6ClusterRange string `mapstructure:"ipv6-cluster-alloc-cidr"`
}

// DefaultConfig takes the CIDRs from the Node or the CiliumNode.
var DefaultConfig = Config{IPv4Range: auto, IPv6Range: auto, IPv4Node: auto, IPv6ClusterRange: "f00d::/64"}

func (c Config) Flags(flags *pflag.FlagSet) {
	flags.String("ipv4-range", c.IPv4Range, "IPv4 CIDR of the pods of this node; auto reads it from the Node")
	flags.String("ipv6-range", c.IPv6Range, "IPv6 CIDR of the pods of this node; auto reads it from the Node")
	flags.String("ipv4-node", c.IPv4Node, "IPv4 address of this node from which a CIDR is derived; auto detects it")
	flags.Bool("k8s-require-ipv4-pod-cidr", c.RequireIPv4, "Wait for an IPv4 pod CIDR in the Node instead of deriving one; implied by an API server")
	flags.Bool("k8s-require-ipv6-pod-cidr", c.RequireIPv6, "Wait for an IPv6 pod CIDR in the Node instead of deriving one; implied by an API server")
	flags.String("ipv6-cluster-alloc-cidr", c.IPv6ClusterRange, "IPv6 /64 that contains derived IPv6 CIDRs")
}

// settings is the checked form of [Config].
type settings struct {
	ipv4Range, ipv6Range     netip.Prefix // invalid when auto
	ipv4Node                 netip.Addr   // invalid when auto
	requireIPv4, requireIPv6 bool
	ipv6Cluster              netip.Prefix
	source                   source
}

// source is the object that contains the CIDRs. It depends on the IPAM mode and on whether there is an API server.
type source int

const (
	fromManifest   source = iota // the Node of the manifests; a CIDR is required only with the flags --k8s-require-*
	fromNode                     // the Node, --ipam=kubernetes
	fromCiliumNode               // the CiliumNode, --ipam=cluster-pool
)

func sourceOf(mode string, kubernetes bool) source {
	switch {
	case !kubernetes:
		return fromManifest
	case mode == agentconfig.IPAMKubernetes:
		return fromNode
	}
	return fromCiliumNode
}

func newSettings(c Config, a agentconfig.Agent, client *kubeapi.Client) (settings, error) {
	s := settings{requireIPv4: c.RequireIPv4, requireIPv6: c.RequireIPv6, source: sourceOf(a.IPAM, client != nil)}
	if s.source != fromManifest {
		s.requireIPv4, s.requireIPv6 = a.EnableIPv4, a.EnableIPv6
	}
	var err error
	if s.ipv4Range, err = rangeFlag("ipv4-range", c.IPv4Range, "ipv4"); err != nil {
		return settings{}, err
	}
	if s.ipv6Range, err = rangeFlag("ipv6-range", c.IPv6Range, "ipv6"); err != nil {
		return settings{}, err
	}
	if c.IPv4Node != auto && c.IPv4Node != "" {
		if s.ipv4Node, err = netip.ParseAddr(c.IPv4Node); err != nil || !s.ipv4Node.Is4() {
			return settings{}, fmt.Errorf("--ipv4-node=%q: must be an IPv4 address or auto", c.IPv4Node)
		}
	}
	s.ipv6Cluster, err = netip.ParsePrefix(c.IPv6ClusterRange)
	if err != nil || !s.ipv6Cluster.Addr().Is6() || s.ipv6Cluster.Bits() != 64 {
		return settings{}, fmt.Errorf("--ipv6-cluster-alloc-cidr=%q: must be an IPv6 CIDR of length 64", c.IPv6ClusterRange)
	}
	s.ipv6Cluster = s.ipv6Cluster.Masked()
	return s, s.checkName(a)
}

// checkName returns an error if the CIDRs come from an object whose name is guessed from the host name: the object may belong to another node.
func (s settings) checkName(a agentconfig.Agent) error {
	needed := a.EnableIPv4 && !s.ipv4Range.IsValid() || a.EnableIPv6 && !s.ipv6Range.IsValid()
	if s.source == fromManifest || !needed || a.NodeNameSource != "hostname" {
		return nil
	}
	return fmt.Errorf("find the pod CIDRs of this node: the name of its Node is unknown (the host name, %q, is no "+
		"more than a guess): set the environment variable K8S_NODE_NAME from spec.nodeName, or --node-name", a.NodeName)
}

// rangeFlag parses the value of a range flag; the result is invalid for auto. An error stops the agent.
func rangeFlag(flag, value, family string) (netip.Prefix, error) {
	if value == auto || value == "" {
		return netip.Prefix{}, nil
	}
	prefix, got, err := parse(value)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("--%s=%q: %w", flag, value, err)
	}
	if got != family {
		return netip.Prefix{}, fmt.Errorf("--%s=%q: must be an %s CIDR or auto", flag, value, display(family))
	}
	return prefix, nil
}

package servicecontroller

import (
	"fmt"
	"net/netip"

	"github.com/spf13/pflag"

	"github.com/waggle-net/waggle/pkg/agentconfig"
)

// Config selects the Services and addresses that are served. The flags have the same names as in Cilium.
type Config struct {
	ProxyName         string `mapstructure:"k8s-service-proxy-name"`
	ExternalIPs       bool   `mapstructure:"enable-external-ips"`
	HostPort          bool   `mapstructure:"enable-host-port"`
	Topology          bool   `mapstructure:"enable-service-topology"`
	ExternalClusterIP bool   `mapstructure:"bpf-lb-external-clusterip"`
	NoBackend         string `mapstructure:"service-no-backend-response"`
	IPv4Range         string `mapstructure:"ipv4-service-range"`
	IPv6Range         string `mapstructure:"ipv6-service-range"`
}

// Values of --service-no-backend-response and of the ranges.
const (
	reject = "reject"
	drop   = "drop"
	auto   = "auto" // only existing ClusterIPs are reserved
)

// DefaultConfig has the default values of the flags.
var DefaultConfig = Config{ExternalIPs: true, HostPort: true, Topology: true, NoBackend: reject, IPv4Range: auto, IPv6Range: auto}

func (c Config) Flags(flags *pflag.FlagSet) {
	flags.String("k8s-service-proxy-name", c.ProxyName,
		"Serve only Services with this value of the label service.kubernetes.io/service-proxy-name; empty: only those without the label")
	flags.Bool("enable-external-ips", c.ExternalIPs, "Serve the externalIPs of Services")
	flags.Bool("enable-host-port", c.HostPort, "Serve the host ports of pods")
	flags.Bool("enable-service-topology", c.Topology, "Follow the hints of EndpointSlices for zones and nodes")
	flags.Bool("bpf-lb-external-clusterip", c.ExternalClusterIP, "Allow clients outside the cluster to use ClusterIPs")
	flags.String("service-no-backend-response", c.NoBackend, "Response to clients of a Service without backends: reject, or drop for no response")
	flags.String("ipv4-service-range", c.IPv4Range,
		"IPv4 prefix of ClusterIPs, in which no Service may have an external address; auto: only existing ClusterIPs are reserved")
	flags.String("ipv6-service-range", c.IPv6Range, "IPv6 prefix of ClusterIPs, in which no Service may have an external address; auto: only existing ClusterIPs are reserved")
}

// rules are the validated flags and the settings of the agent.
type rules struct {
	agent             agentconfig.Agent
	proxyName         string
	externalIPs       bool
	hostPort          bool
	topology          bool
	externalClusterIP bool
	drop              bool
	ranges            []netip.Prefix    // of ClusterIPs; none for a family with the value auto
	ports             map[portOf]string // ports of the node that external IPs and host ports must not use, with their owners
}

func newRules(c Config, a agentconfig.Agent, l agentconfig.Listeners) (rules, error) {
	r := rules{agent: a, proxyName: c.ProxyName, externalIPs: c.ExternalIPs, hostPort: c.HostPort, topology: c.Topology,
		externalClusterIP: c.ExternalClusterIP, drop: c.NoBackend == drop, ports: reservedPorts(a, l.All)}
	if !r.drop && c.NoBackend != reject {
		return rules{}, fmt.Errorf("--service-no-backend-response=%q: use %s or %s", c.NoBackend, reject, drop)
	}
	for _, f := range []struct {
		flag, text string
		is4        bool
	}{{"ipv4-service-range", c.IPv4Range, true}, {"ipv6-service-range", c.IPv6Range, false}} {
		if f.text == auto {
			continue
		}
		prefix, err := netip.ParsePrefix(f.text)
		if err != nil || prefix.Addr().Is4() != f.is4 {
			return rules{}, fmt.Errorf("--%s=%q: want a prefix of this family, or %s", f.flag, f.text, auto)
		}
		r.ranges = append(r.ranges, prefix.Masked())
	}
	return r, nil
}

// serves reports whether an address family is enabled.
func (r *rules) serves(is4 bool) bool { return is4 && r.agent.EnableIPv4 || !is4 && r.agent.EnableIPv6 }

// Package agentconfig holds the flags that many cells read, for example directories and address families. A flag that only one cell reads belongs to that cell.
package agentconfig

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/cilium/hive/cell"
	"github.com/spf13/pflag"

	"github.com/waggle-net/waggle/pkg/maglev"
)

// Cell provides [Agent] to every cell.
var Cell = cell.Module("settings", "Flags that several cells read",
	cell.Config(DefaultFlags),
	cell.Provide(New),
)

// Flags configures directories, address families, services, masquerading, routes between nodes and health checks. [New] checks the values.
type Flags struct {
	EnableIPv4 bool   `mapstructure:"enable-ipv4"`
	EnableIPv6 bool   `mapstructure:"enable-ipv6"`
	StateDir   string `mapstructure:"state-dir"`
	BPFRoot    string `mapstructure:"bpf-root"`
	Procfs     string `mapstructure:"procfs"`
	NodeName   string `mapstructure:"node-name"`
	Cluster    string `mapstructure:"cluster-name"`
	IPAM       string `mapstructure:"ipam"`

	KubeProxyReplacement bool     `mapstructure:"kube-proxy-replacement"`
	NodePortRange        []string `mapstructure:"node-port-range"`
	Algorithm            string   `mapstructure:"bpf-lb-algorithm"`
	AlgorithmAnnotation  bool     `mapstructure:"bpf-lb-algorithm-annotation"`
	MaglevTableSize      int      `mapstructure:"bpf-lb-maglev-table-size"`
	EnableIPv4Masquerade bool     `mapstructure:"enable-ipv4-masquerade"`
	EnableIPv6Masquerade bool     `mapstructure:"enable-ipv6-masquerade"`
	EnableBPFMasquerade  bool     `mapstructure:"enable-bpf-masquerade"`

	EndpointShare int `mapstructure:"bpf-ct-endpoint-share"`

	RoutingMode    string `mapstructure:"routing-mode"`
	TunnelProtocol string `mapstructure:"tunnel-protocol"`
	TunnelPort     int    `mapstructure:"tunnel-port"`

	UnderlayProtocol string `mapstructure:"underlay-protocol"`

	HostLegacyRouting bool `mapstructure:"enable-host-legacy-routing"`
	RouteMetric       int  `mapstructure:"route-metric"`

	HealthChecking         bool `mapstructure:"enable-health-checking"`
	EndpointHealthChecking bool `mapstructure:"enable-endpoint-health-checking"`
	HealthPort             int  `mapstructure:"cluster-health-port"`
}

// Sources of the pod CIDRs of a node. Without Kubernetes both mean the manifest of the Node.
const (
	IPAMKubernetes  = "kubernetes"   // the Node's spec or annotations
	IPAMClusterPool = "cluster-pool" // the CiliumNode, in which --role=cluster writes them
)

// Algorithms that choose a backend of a service for clients outside the cluster, as named in flags and annotations.
const (
	AlgorithmRandom = "random"
	AlgorithmMaglev = "maglev"
)

// DefaultFlags holds the defaults. Paths follow Cilium's, with waggle in place of cilium.
var DefaultFlags = Flags{
	EnableIPv4: true,
	EnableIPv6: true,
	StateDir:   "/var/run/waggle",
	BPFRoot:    "/sys/fs/bpf",
	Procfs:     "/proc",
	Cluster:    "default",
	IPAM:       IPAMClusterPool,

	KubeProxyReplacement: true,
	NodePortRange:        []string{"30000", "32767"},
	Algorithm:            AlgorithmRandom,
	MaglevTableSize:      16381,
	EnableIPv4Masquerade: true,
	EnableIPv6Masquerade: true,
	EnableBPFMasquerade:  true,

	EndpointShare: 25,

	RoutingMode:    RoutingTunnel,
	TunnelProtocol: ProtocolVXLAN,
	TunnelPort:     portVXLAN,

	UnderlayProtocol: UnderlayAuto,

	HealthChecking:         true,
	EndpointHealthChecking: true,
	HealthPort:             4240,
}

// Flags adds the flags to a set; the values of f are the defaults.
func (f Flags) Flags(flags *pflag.FlagSet) {
	flags.Bool("enable-ipv4", f.EnableIPv4, "Give pods IPv4 addresses")
	flags.Bool("enable-ipv6", f.EnableIPv6, "Give pods IPv6 addresses")
	flags.String("state-dir", f.StateDir, "Directory for endpoint files, queues and the default sockets (a tmpfs)")
	flags.String("bpf-root", f.BPFRoot, "Mount point of the BPF file system; the agent mounts it if necessary")
	flags.String("procfs", f.Procfs, "Mount point of procfs, under which sysctls are written")
	flags.String("ipam", f.IPAM, "Source of the pod CIDRs of this node: kubernetes (its Node) or cluster-pool (its CiliumNode)")
	flags.String("cluster-name", f.Cluster, "Name of the cluster, in the labels of pods and the names of nodes")
	flags.Bool("kube-proxy-replacement", f.KubeProxyReplacement,
		"Serve Services; false leaves all Services to a kube-proxy, and removes the entries of previous runs")
	flags.StringSlice("node-port-range", f.NodePortRange, "First and last port of NodePort services, e.g. 30000,32767")
	flags.String("bpf-lb-algorithm", f.Algorithm, "Algorithm that chooses the backend of a Service for a client outside the cluster: random, or maglev "+
		"(the same backend on all nodes)")
	flags.Bool("bpf-lb-algorithm-annotation", f.AlgorithmAnnotation, "Let the annotation service.cilium.io/lb-algorithm of a Service select maglev, which reserves "+
		"capacity for Maglev tables; not needed with --bpf-lb-algorithm=maglev")
	flags.Int("bpf-lb-maglev-table-size", f.MaglevTableSize, "Slots of Maglev tables, at least 100 per backend, equal on all nodes: 251, 509, 1021, "+
		"2039, 4093, 8191, 16381, 32749, 65521 or 131071")
	flags.Bool("enable-ipv4-masquerade", f.EnableIPv4Masquerade, "Translate the source address of connections from pods to the outside to the node's IPv4 address")
	flags.Bool("enable-ipv6-masquerade", f.EnableIPv6Masquerade, "Translate the source address of connections from pods to the outside to the node's IPv6 address")
	flags.Bool("enable-bpf-masquerade", f.EnableBPFMasquerade, "Masquerade in eBPF; there is no other implementation, so false disables masquerading")
	flags.Int("bpf-ct-endpoint-share", f.EndpointShare, "Quota of one endpoint in the tables of flows and of translated flows, "+
		"in percent, 1 to 100")
	f.tunnelFlags(flags)
	flags.Bool("enable-health-checking", f.HealthChecking, "Probe the nodes of the cluster, and answer their probes")
	flags.Bool("enable-endpoint-health-checking", f.EndpointHealthChecking,
		"Give waggle_host a health address, reached as pods are, if an API server can publish it; probe the health addresses of other nodes")
	flags.Int("cluster-health-port", f.HealthPort, "TCP port on which nodes answer probes, the same on all nodes")
	flags.String("node-name", f.NodeName, "Name of this node; default: environment K8S_NODE_NAME, then the host name")
}

// Agent is the checked form of [Flags]. It does not change while the agent runs.
type Agent struct {
	EnableIPv4, EnableIPv6 bool   // at least one is true
	StateDir               string // absolute
	BPFRoot                string // absolute mount point of bpffs
	Procfs                 string // absolute
	NodeName               string // never empty
	ClusterName            string // a DNS label of at most 32 characters; never empty
	// NodeNameSource is the source of NodeName: "flag", "K8S_NODE_NAME" or "hostname".
	NodeNameSource string
	IPAM           string // [IPAMKubernetes] or [IPAMClusterPool]

	// KubeProxyReplacement is false if another program serves Services. Then cells that create rows of Services create none, and cells that write these rows to
	// the kernel remove the entries of previous runs.
	KubeProxyReplacement     bool
	Maglev                   bool   // Maglev's tables choose backends for clients outside the cluster, unless their service chooses otherwise
	AlgorithmAnnotation      bool   // a service may choose Maglev even if Maglev is false
	MaglevTableSize          int    // slots of a table, one of [maglev.Sizes]
	NodePortMin, NodePortMax uint16 // range of NodePort services; 0 < min <= max

	MasqueradeIPv4, MasqueradeIPv6 bool // pods use the node's address for connections to the outside; false for a disabled family

	EndpointShare int // share of the tables of flows that one endpoint may fill, in percent, 1 to 100

	TunnelPort   uint16 // UDP port of the VXLAN tunnel between nodes; 0 with --routing-mode=native
	Hybrid       bool   // nodes on the same link are reached without the tunnel while a test of the direct path passes; false without a tunnel
	UnderlayIPv6 bool   // the tunnel is sent between IPv6 addresses of nodes; false without a tunnel

	HostLegacyRouting bool // the stack of this node forwards packets between its pods and pods of other nodes, in every routing mode
	RouteMetric       int  // metric of the routes to pods of this node, see [Agent.TunnelMetrics]; 0: the kernel's default

	HealthChecking         bool   // the nodes probe each other
	EndpointHealthChecking bool   // nodes have health addresses, which are probed too; false without HealthChecking
	HealthPort             uint16 // TCP port on which the nodes answer probes, the same on all
}

// NodePort reports whether a port is in the range of NodePort services.
func (a Agent) NodePort(port uint16) bool { return a.NodePortMin <= port && port <= a.NodePortMax }

// MaglevTables reports whether a service may use Maglev, so that the datapath needs capacity for Maglev's tables.
func (a Agent) MaglevTables() bool { return a.Maglev || a.AlgorithmAnnotation }

// clusterName matches the names that Cilium accepts, so that nodes of both can use the same name.
var clusterName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,30}[a-z0-9])?$`)

// New checks flags and fills in the node name.
func New(f Flags) (Agent, error) {
	a := Agent{EnableIPv4: f.EnableIPv4, EnableIPv6: f.EnableIPv6, NodeName: f.NodeName, NodeNameSource: "flag",
		IPAM: f.IPAM, KubeProxyReplacement: f.KubeProxyReplacement, Maglev: f.Algorithm == AlgorithmMaglev,
		AlgorithmAnnotation: f.AlgorithmAnnotation,
		MaglevTableSize:     f.MaglevTableSize, EndpointShare: f.EndpointShare,
		MasqueradeIPv4: f.EnableIPv4 && f.EnableIPv4Masquerade && f.EnableBPFMasquerade,
		MasqueradeIPv6: f.EnableIPv6 && f.EnableIPv6Masquerade && f.EnableBPFMasquerade,
		HealthChecking: f.HealthChecking, EndpointHealthChecking: f.HealthChecking && f.EndpointHealthChecking,
		HealthPort: uint16(f.HealthPort), HostLegacyRouting: f.HostLegacyRouting, RouteMetric: f.RouteMetric}
	if f.HealthPort < 1 || f.HealthPort > 65535 {
		return Agent{}, fmt.Errorf("--cluster-health-port=%d: use 1 to 65535", f.HealthPort)
	}
	if !a.Maglev && f.Algorithm != AlgorithmRandom {
		return Agent{}, fmt.Errorf("--bpf-lb-algorithm=%q: use %s or %s", f.Algorithm, AlgorithmRandom, AlgorithmMaglev)
	}
	if a.IPAM != IPAMKubernetes && a.IPAM != IPAMClusterPool {
		return Agent{}, fmt.Errorf("--ipam=%q: use %s or %s", a.IPAM, IPAMKubernetes, IPAMClusterPool)
	}
	if err := maglev.CheckSize(f.MaglevTableSize); err != nil {
		return Agent{}, fmt.Errorf("--bpf-lb-maglev-table-size: %w", err)
	}
	if a.EndpointShare < 1 || a.EndpointShare > 100 {
		return Agent{}, fmt.Errorf("--bpf-ct-endpoint-share=%d: want 1 to 100 percent", a.EndpointShare)
	}
	if !a.EnableIPv4 && !a.EnableIPv6 {
		return Agent{}, errors.New("--enable-ipv4 and --enable-ipv6 are both false: enable at least one address family")
	}
	if a.ClusterName = f.Cluster; !clusterName.MatchString(f.Cluster) {
		return Agent{}, fmt.Errorf("--cluster-name=%q: want at most 32 lower-case letters, digits and '-', beginning and ending "+
			"with a letter or digit", f.Cluster)
	}
	var err error
	if a.NodePortMin, a.NodePortMax, err = portRange(f.NodePortRange); err != nil {
		return Agent{}, err
	}
	if a.TunnelPort, err = f.tunnelPort(a.NodePortMin, a.NodePortMax); err != nil {
		return Agent{}, err
	}
	if a.UnderlayIPv6, err = f.underlayIPv6(); err != nil {
		return Agent{}, err
	}
	if err := f.checkRouteMetric(); err != nil {
		return Agent{}, err
	}
	if a.Hybrid = f.RoutingMode == RoutingHybrid; a.Hybrid && !a.HealthChecking {
		return Agent{}, fmt.Errorf("--routing-mode=%s needs --enable-health-checking=true, without which no path is tested: set it, or use --routing-mode=%s",
			RoutingHybrid, RoutingTunnel)
	}
	for _, p := range []struct {
		flag, value string
		into        *string
	}{{"state-dir", f.StateDir, &a.StateDir}, {"bpf-root", f.BPFRoot, &a.BPFRoot}, {"procfs", f.Procfs, &a.Procfs}} {
		if !filepath.IsAbs(p.value) {
			return Agent{}, fmt.Errorf("--%s=%q: must be an absolute path", p.flag, p.value)
		}
		*p.into = filepath.Clean(p.value)
	}
	if a.NodeName == "" {
		a.NodeName, a.NodeNameSource = os.Getenv("K8S_NODE_NAME"), "K8S_NODE_NAME"
	}
	if a.NodeName == "" {
		name, err := os.Hostname()
		if err != nil {
			return Agent{}, fmt.Errorf("find a node name: set --node-name or K8S_NODE_NAME: %w", err)
		}
		a.NodeName, a.NodeNameSource = strings.ToLower(name), "hostname"
	}
	return a, nil
}

// maxNodePort leaves ports above the range for the source ports of translated connections.
const maxNodePort = 65534

func portRange(ends []string) (first, last uint16, err error) {
	invalid := fmt.Errorf("--node-port-range=%s: want the first and the last port, from 1 to %d, such as %s", strings.Join(ends, ","),
		maxNodePort, strings.Join(DefaultFlags.NodePortRange, ","))
	if len(ends) != 2 {
		return 0, 0, invalid
	}
	for i, into := range []*uint16{&first, &last} {
		port, err := strconv.ParseUint(strings.TrimSpace(ends[i]), 10, 16)
		if err != nil || port == 0 || port > maxNodePort {
			return 0, 0, invalid
		}
		*into = uint16(port)
	}
	if first > last {
		return 0, 0, invalid
	}
	return first, last, nil
}

// EndpointsDir returns the directory of endpoint state files.
func (a Agent) EndpointsDir() string { return filepath.Join(a.StateDir, "endpoints") }

// DeleteQueueDir returns the directory in which the plugin queues DELs that the agent could not accept.
func (a Agent) DeleteQueueDir() string { return filepath.Join(a.StateDir, "deleteQueue") }

// PinDir returns the directory in the BPF file system for all pins of the agent.
func (a Agent) PinDir() string { return filepath.Join(a.BPFRoot, "waggle") }

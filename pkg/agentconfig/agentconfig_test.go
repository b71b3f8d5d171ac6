package agentconfig

import (
	"strings"
	"testing"
)

func TestNew_Rejects(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*Flags)
		want   string
	}{
		"no family":            {func(f *Flags) { f.EnableIPv4, f.EnableIPv6 = false, false }, "--enable-ipv4 and --enable-ipv6 are both false"},
		"relative state dir":   {func(f *Flags) { f.StateDir = "run" }, `--state-dir="run": must be an absolute path`},
		"relative bpf root":    {func(f *Flags) { f.BPFRoot = "./bpf" }, `--bpf-root="./bpf"`},
		"empty procfs":         {func(f *Flags) { f.Procfs = "" }, `--procfs=""`},
		"IPAM of a cloud":      {func(f *Flags) { f.IPAM = "eni" }, `--ipam="eni": use kubernetes or cluster-pool`},
		"unknown algorithm":    {func(f *Flags) { f.Algorithm = "least" }, `--bpf-lb-algorithm="least": use random or maglev`},
		"no prime":             {func(f *Flags) { f.MaglevTableSize = 16384 }, "--bpf-lb-maglev-table-size: 16384 slots: want one of 251, 509"},
		"no share":             {func(f *Flags) { f.EndpointShare = 101 }, "--bpf-ct-endpoint-share=101: want 1 to 100 percent"},
		"no health port":       {func(f *Flags) { f.HealthPort = 0 }, "--cluster-health-port=0: use 1 to 65535"},
		"half a port range":    {func(f *Flags) { f.NodePortRange = []string{"30000"} }, "--node-port-range=30000: want the first and the last"},
		"port range backwards": {func(f *Flags) { f.NodePortRange = []string{"32767", "30000"} }, "--node-port-range=32767,30000"},
		"port 0":               {func(f *Flags) { f.NodePortRange = []string{"0", "1"} }, "--node-port-range=0,1"},
		"no port":              {func(f *Flags) { f.NodePortRange = []string{"x", "1"} }, "--node-port-range=x,1"},
		"no port above":        {func(f *Flags) { f.NodePortRange = []string{"1", "65535"} }, "--node-port-range=1,65535"},
		"unknown routing":      {func(f *Flags) { f.RoutingMode = "direct" }, `--routing-mode="direct": use native, tunnel or hybrid`},
		"hybrid without tests": {func(f *Flags) { f.RoutingMode, f.HealthChecking = "hybrid", false }, "--routing-mode=hybrid needs --enable-health-checking=true"},
		"geneve":               {func(f *Flags) { f.RoutingMode, f.TunnelProtocol = "tunnel", "geneve" }, "--tunnel-protocol=geneve: is not supported: use vxlan"},
		"geneve, no tunnel":    {func(f *Flags) { f.RoutingMode, f.TunnelProtocol = "native", "geneve" }, "--tunnel-protocol=geneve: is not supported: use vxlan"},
		"no tunnel port":       {func(f *Flags) { f.RoutingMode, f.TunnelPort = "tunnel", 65536 }, "--tunnel-port=65536: want a port from 1 to 65535"},
		"tunnel and NodePorts": {func(f *Flags) { f.RoutingMode, f.TunnelPort = "tunnel", 30000 }, "--tunnel-port=30000: is in the range 30000 to 32767 of --node-port-range"},
		"unknown underlay":     {func(f *Flags) { f.UnderlayProtocol = "ip" }, `--underlay-protocol="ip": use auto, ipv4 or ipv6`},
		"underlay without IPv4": {func(f *Flags) { f.RoutingMode, f.EnableIPv4, f.UnderlayProtocol = "tunnel", false, "ipv4" },
			"--underlay-protocol=ipv4 needs --enable-ipv4=true: enable the family, or use --underlay-protocol=auto"},
		"underlay without IPv6": {func(f *Flags) { f.RoutingMode, f.EnableIPv6, f.UnderlayProtocol = "tunnel", false, "ipv6" },
			"--underlay-protocol=ipv6 needs --enable-ipv6=true: enable the family, or use --underlay-protocol=auto"},
		"negative metric":       {func(f *Flags) { f.RouteMetric = -1 }, "--route-metric=-1: use 1 to 2147483645, or 0 for the metrics of the agent"},
		"metric too large":      {func(f *Flags) { f.RouteMetric = 2147483646 }, "--route-metric=2147483646: use 1 to 2147483645"},
		"relative after a name": {func(f *Flags) { f.NodeName, f.StateDir = "bee", "x" }, "--state-dir"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			flags := DefaultFlags
			c.change(&flags)
			if _, err := New(flags); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
}

func TestNew_Paths(t *testing.T) {
	t.Parallel()
	flags := DefaultFlags
	flags.NodeName, flags.StateDir, flags.BPFRoot = "bee", "/run//waggle/", "/sys/fs/bpf/"
	a, err := New(flags)
	if err != nil {
		t.Fatal(err)
	}
	for got, want := range map[string]string{
		a.StateDir: "/run/waggle", a.EndpointsDir(): "/run/waggle/endpoints", a.DeleteQueueDir(): "/run/waggle/deleteQueue",
		a.PinDir(): "/sys/fs/bpf/waggle", a.NodeName: "bee", a.NodeNameSource: "flag",
		a.IPAM: "cluster-pool",
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// TestNew_NodeName is not parallel: it changes the environment.
func TestNew_NodeName(t *testing.T) {
	t.Setenv("K8S_NODE_NAME", "from-environment")
	if a, err := New(DefaultFlags); err != nil || a.NodeName != "from-environment" || a.NodeNameSource != "K8S_NODE_NAME" {
		t.Errorf("with the variable: %+v, %v", a, err)
	}
	t.Setenv("K8S_NODE_NAME", "")
	if a, err := New(DefaultFlags); err != nil || a.NodeName == "" || a.NodeNameSource != "hostname" {
		t.Errorf("without: %+v, %v", a, err)
	}
}

func TestAgent_NodePort(t *testing.T) {
	t.Parallel()
	flags := DefaultFlags
	flags.NodePortRange = []string{"30000", " 30002"}
	a, err := New(flags)
	if err != nil {
		t.Fatal(err)
	}
	for port, want := range map[uint16]bool{29999: false, 30000: true, 30002: true, 30003: false, 0: false} {
		if a.NodePort(port) != want {
			t.Errorf("port %d: got %t", port, !want)
		}
	}
}

func TestNew_Masquerade(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change     func(*Flags)
		ipv4, ipv6 bool
	}{
		"by default":           {func(*Flags) {}, true, true},
		"IPv6 off":             {func(f *Flags) { f.EnableIPv6 = false }, true, false},
		"IPv4 not masqueraded": {func(f *Flags) { f.EnableIPv4Masquerade = false }, false, true},
		"IPv6 not masqueraded": {func(f *Flags) { f.EnableIPv6Masquerade = false }, true, false},
		"by another program":   {func(f *Flags) { f.EnableBPFMasquerade = false }, false, false},
	} {
		flags := DefaultFlags
		c.change(&flags)
		if a, err := New(flags); err != nil || a.MasqueradeIPv4 != c.ipv4 || a.MasqueradeIPv6 != c.ipv6 {
			t.Errorf("%s: %t, %t, %v", name, a.MasqueradeIPv4, a.MasqueradeIPv6, err)
		}
	}
}

func TestNew_Underlay(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change   func(*Flags)
		ipv6     bool
		overhead int
	}{
		"by default":            {func(*Flags) {}, false, 50},
		"auto without IPv6":     {func(f *Flags) { f.EnableIPv6 = false }, false, 50},
		"auto without IPv4":     {func(f *Flags) { f.EnableIPv4 = false }, true, 70},
		"IPv4":                  {func(f *Flags) { f.UnderlayProtocol = "ipv4" }, false, 50},
		"IPv6":                  {func(f *Flags) { f.UnderlayProtocol = "ipv6" }, true, 70},
		"IPv6 without a tunnel": {func(f *Flags) { f.RoutingMode, f.UnderlayProtocol = "native", "ipv6" }, false, 0},
		"no family of it":       {func(f *Flags) { f.RoutingMode, f.UnderlayProtocol, f.EnableIPv6 = "native", "ipv6", false }, false, 0},
	} {
		flags := DefaultFlags
		c.change(&flags)
		if a, err := New(flags); err != nil || a.UnderlayIPv6 != c.ipv6 || a.TunnelOverhead() != c.overhead {
			t.Errorf("%s: IPv6 %t, %d bytes, %v", name, a.UnderlayIPv6, a.TunnelOverhead(), err)
		}
	}
}

// Health addresses need both flags.
func TestNew_EndpointHealthChecking(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ health, endpoint, want bool }{{true, true, true}, {true, false, false}, {false, true, false}} {
		flags := DefaultFlags
		flags.HealthChecking, flags.EndpointHealthChecking = test.health, test.endpoint
		if a, err := New(flags); err != nil || a.HealthChecking != test.health || a.EndpointHealthChecking != test.want {
			t.Errorf("%+v gives %v and %v, %v", test, a.HealthChecking, a.EndpointHealthChecking, err)
		}
	}
}

// The order of routes to one destination is the same for each metric: to pods of this node, past the tunnel, into the tunnel.
func TestAgent_TunnelMetrics_KeepTheOrder(t *testing.T) {
	t.Parallel()
	for metric, want := range map[int][2]int{0: {1024, 2048}, 1: {2, 3}, 1024: {1025, 1026}, 5000: {5001, 5002}, 2147483645: {2147483646, 2147483647}} {
		flags := DefaultFlags
		flags.RouteMetric = metric
		a, err := New(flags)
		if err != nil || a.RouteMetric != metric {
			t.Errorf("--route-metric=%d: %d, %v", metric, a.RouteMetric, err)
		}
		past, into := a.TunnelMetrics()
		if [2]int{past, into} != want || past <= metric || into <= past {
			t.Errorf("--route-metric=%d: %d past the tunnel, %d into it; want %d", metric, past, into, want)
		}
	}
}

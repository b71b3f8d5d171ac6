package cli

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/waggle-net/waggle/api/v1/models"
	"github.com/waggle-net/waggle/pkg/tables/bpfprograms"
	"github.com/waggle-net/waggle/pkg/tables/configs"
	"github.com/waggle-net/waggle/pkg/tables/nodepaths"
)

func TestProgramsText_ReportsLoadError(t *testing.T) {
	t.Parallel()
	got := programsText([]bpfprograms.Program{{Name: "pod_egress", Generation: 3, Error: "R9 !read_ok"}})
	if want := "degraded: datapath generation 3, programs of the previous run are kept: R9 !read_ok"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := programsText(nil); got != "-" {
		t.Errorf("without rows: %q", got)
	}
}

func TestStatusText_Services(t *testing.T) {
	t.Parallel()
	k := models.KubeProxyReplacement{
		Mode:                models.KubeProxyReplacementModeTrue,
		DeviceList:          []models.KubeProxyDevice{{Name: "eth0", IP: []string{"192.0.2.5", "2001:db8::5"}}, {Name: "eth1"}},
		DirectRoutingDevice: "eth0",
		Features: models.KubeProxyFeatures{SocketLB: models.Feature{Enabled: true}, HostPort: models.Feature{Enabled: true},
			NodePort: models.NodePortFeature{Enabled: true, Mode: "SNAT", Algorithm: "Maglev", PortMin: 30000, PortMax: 32767}},
	}
	m := models.Masquerading{Enabled: true, Mode: "BPF", EnabledProtocols: models.MasqueradingProtocols{Ipv4: true, Ipv6: true},
		SnatExclusionCIDRV4: "10.0.0.0/8"}
	for got, want := range map[string]string{
		kubeProxyText(k): "True, node ports 30000-32767 (SNAT, Maglev), sockets, host ports",
		kubeProxyText(models.KubeProxyReplacement{Mode: models.KubeProxyReplacementModeFalse}): "False",
		masqueradingText(m):                     "BPF, IPv4 but not to 10.0.0.0/8, IPv6",
		masqueradingText(models.Masquerading{}): "Disabled",
		masqueradingText(models.Masquerading{Enabled: true, Mode: "BPF", IPMasqAgent: true, EnabledProtocols: models.MasqueradingProtocols{Ipv4: true}}): "BPF, IPv4, ip-masq-agent",
		devicesText(k): "eth0 192.0.2.5 2001:db8::5 (direct routing), eth1 -",
		devicesText(models.KubeProxyReplacement{}): "-",
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestRoutingText_EachMode(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		routing models.Routing
		modes   []*nodepaths.Path
		want    string
	}{
		{models.Routing{InterHostRoutingMode: "Tunnel", TunnelProtocol: "vxlan", IntraHostRoutingMode: "BPF"}, nil, "Network: Tunnel [vxlan]   Host: BPF"},
		{models.Routing{InterHostRoutingMode: "Hybrid", TunnelProtocol: "vxlan", IntraHostRoutingMode: "BPF"},
			[]*nodepaths.Path{{Mode: nodepaths.Direct}, {Mode: nodepaths.Tunnel}, {Mode: nodepaths.Direct}}, "Network: Hybrid [vxlan], 2 direct, 1 tunnel   Host: BPF"},
		{models.Routing{InterHostRoutingMode: "Native", IntraHostRoutingMode: "BPF"}, nil, "Network: Native   Host: BPF"},
		{models.Routing{}, nil, "Network: -   Host: -"}, // of an older agent without these fields
	} {
		if got := routingText(tc.routing, tc.modes); got != tc.want {
			t.Errorf("%+v: got %q, want %q", tc.routing, got, tc.want)
		}
	}
}

func TestOptionLines_NameIgnoredOptions(t *testing.T) {
	t.Parallel()
	rows := []configs.Config{{Key: "enable-wireguard", Ignored: true, Unprotected: "packets between nodes are not encrypted"}}
	for i := range shownOptions + 2 {
		rows = append(rows, configs.Config{Key: fmt.Sprintf("k%02d", i), Ignored: true})
	}
	const first = "k00, k01, k02, k03, k04, k05, k06, k07, k08, k09, "
	for name, tc := range map[string]struct {
		rows    []configs.Config
		verbose bool
		want    []string
	}{
		"none":                      {nil, false, nil},
		"one without protection":    {rows[:1], false, []string{"Unprotected: enable-wireguard: packets between nodes are not encrypted"}},
		"few":                       {rows[1:3], false, []string{"Ignored options: k00, k01"}},
		"more than the status show": {rows[1:], false, []string{"Ignored options: " + first + "and 2 more; see waggle status --verbose"}},
		"verbose":                   {rows[1:], true, []string{"Ignored options: " + first + "k10, k11"}},
	} {
		var got []string
		optionLines(tc.rows, tc.verbose, func(name, value string) { got = append(got, name+": "+value) })
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

func TestChangeLines_ShowBothValues(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 200)
	change := func(key, value, next, source string) configs.Config {
		return configs.Config{Key: key, Value: value, Changed: true, Next: next, NextSource: source}
	}
	mtu := change("device-mtu", "9000", "1500", "default")
	var many []configs.Config
	for i := range shownOptions + 2 {
		many = append(many, change(fmt.Sprintf("k%02d", i), "a", "b", "directory"))
	}
	const problem = "--config-dir=/etc/waggle: read the directory: no such file or directory"
	for name, tc := range map[string]struct {
		rows    []configs.Config
		verbose bool
		lines   int
		want    []string
	}{
		"none":          {[]configs.Config{{Key: "debug", Value: "true"}, {Key: "kvstore", Ignored: true}}, false, 0, nil},
		"one":           {[]configs.Config{{Key: "debug"}, mtu}, false, 2, []string{"Changed options: 1", "  device-mtu: 9000 now, 1500 after a restart of the agent (default)"}},
		"empty values":  {[]configs.Config{change("a", "", "x", "directory"), change("b", "x", "", "directory")}, false, 3, []string{"Changed options: 2", `  a: "" now, x after a restart of the agent (directory)`, `  b: x now, "" after a restart of the agent (directory)`}},
		"long values":   {[]configs.Config{change("a", long, "y"+long, "directory")}, false, 2, []string{"Changed options: 1", "  a: " + long[:80] + "... now, y" + long[:79] + "... after a restart of the agent (directory)"}},
		"many":          {many, false, shownOptions + 1, []string{"Changed options: 12; see waggle status --verbose", "  k00: a now, b after a restart of the agent (directory)"}},
		"many, verbose": {many, true, shownOptions + 3, []string{"Changed options: 12", "  k00: a now, b after a restart of the agent (directory)"}},
		"problem":       {[]configs.Config{{Key: "config-dir", Problem: problem}, mtu}, false, 3, []string{"Config directory: " + problem, "Changed options: 1"}},
		"only problem":  {[]configs.Config{{Key: "config-dir", Problem: problem}}, false, 1, []string{"Config directory: " + problem}},
	} {
		s := &statusRows{}
		s.addOptions(tc.rows)
		var got []string
		changeLines(s, tc.verbose, func(name, value string) { got = append(got, name+": "+value) })
		if len(got) != tc.lines || !slices.Equal(got[:len(tc.want)], tc.want) {
			t.Errorf("%s: %q, want %d lines that begin with %q", name, got, tc.lines, tc.want)
		}
	}
}

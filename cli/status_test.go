package cli

import (
	"fmt"
	"slices"
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

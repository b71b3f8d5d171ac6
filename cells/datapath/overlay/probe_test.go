package overlay

import (
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/agentconfig"
)

func TestHindrance_PacketInspection(t *testing.T) {
	t.Parallel()
	none := func(int) ([]netlink.XfrmPolicy, error) { return nil, nil }
	for name, c := range map[string]struct {
		settings agentconfig.Agent
		policies func(int) ([]netlink.XfrmPolicy, error)
		want     string // "" for none
	}{
		"nothing":    {agentconfig.Agent{KubeProxyReplacement: true}, none, ""},
		"kube-proxy": {agentconfig.Agent{}, none, "--kube-proxy-replacement=false"},
		"the user":   {agentconfig.Agent{KubeProxyReplacement: true, HostLegacyRouting: true}, none, "--enable-host-legacy-routing=true"},
		"IPsec": {agentconfig.Agent{KubeProxyReplacement: true}, func(int) ([]netlink.XfrmPolicy, error) { return make([]netlink.XfrmPolicy, 2), nil },
			"2 IPsec policies"},
		"a kernel without IPsec": {agentconfig.Agent{KubeProxyReplacement: true}, func(int) ([]netlink.XfrmPolicy, error) { return nil, unix.EPROTONOSUPPORT }, ""},
		"no right to list them":  {agentconfig.Agent{KubeProxyReplacement: true}, func(int) ([]netlink.XfrmPolicy, error) { return nil, unix.EPERM }, "list the IPsec policies"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := hindrance(c.settings, c.policies)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

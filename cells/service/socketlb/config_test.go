package socketlb

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/socketlboptions"
)

func TestOptions(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		config Config
		proxy  bool // kube-proxy serves services
		want   socketlboptions.Options
	}{
		"default":          {DefaultConfig, false, socketlboptions.Options{Enabled: true, BindProtection: true}},
		"a kube-proxy":     {DefaultConfig, true, socketlboptions.Options{BindProtection: true}},
		"not on this node": {Config{}, false, socketlboptions.Options{}},
		"the node's":       {Config{Sock: true, HostOnly: true}, false, socketlboptions.Options{Enabled: true, HostOnly: true}},
		"a group":          {Config{Sock: true, Cgroup: "/run/x/"}, false, socketlboptions.Options{Enabled: true, Cgroup: "/run/x"}},
	} {
		got, err := newOptions(c.config, agentconfig.Agent{KubeProxyReplacement: !c.proxy})
		require.NoError(t, err, name)
		require.Equal(t, c.want, got, name)
	}
	_, err := newOptions(Config{Cgroup: "run"}, agentconfig.Agent{})
	require.ErrorContains(t, err, "--cgroup-root")
}

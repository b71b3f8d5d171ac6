package socketlb

import (
	"testing"

	"github.com/cilium/hive/cell"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/socketlboptions"
)

func TestScripts(t *testing.T) {
	t.Parallel()
	celltest.Run(t, "testdata/*.txtar", func(testing.TB) []cell.Cell {
		return []cell.Cell{Cell, cell.Provide(func() agentconfig.Agent { return agentconfig.Agent{KubeProxyReplacement: true} })}
	})
}

func TestDescribe(t *testing.T) {
	t.Parallel()
	require.Equal(t, "services at the socket: no\n", describe(socketlboptions.Options{HostOnly: true}))
	require.Contains(t, describe(socketlboptions.Options{Enabled: true, HostOnly: true, Cgroup: "/group"}), "control group: /group\nsockets of pods: no\n")
}

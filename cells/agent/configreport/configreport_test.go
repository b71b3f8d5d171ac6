package configreport

import (
	"testing"

	"github.com/cilium/hive/cell"

	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/config"
)

func TestScripts(t *testing.T) {
	celltest.RunVirtual(t, "testdata/*.txtar", func(testing.TB) []cell.Cell {
		return []cell.Cell{Cell, cell.Provide(func() config.Effective {
			return config.Effective{Options: []config.Option{
				{Key: "enable-ipv6", Value: "false", Default: "true", Source: config.Environment, Origin: "WAGGLE_ENABLE_IPV6"},
				{Key: "node-name", Source: config.Default},
			}, Ignored: []config.Ignored{
				{Key: "enable-wireguard", Source: config.Directory, Origin: "/c/enable-wireguard", Unprotected: "packets between nodes are not encrypted"},
				{Key: "kvstore", Source: config.Flag, Origin: "--kvstore"},
			}}
		})}
	})
}

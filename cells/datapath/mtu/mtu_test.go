package mtu

import (
	"testing"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/tables/devices"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
)

func TestScripts(t *testing.T) {
	t.Parallel()
	celltest.Run(t, "testdata/*.txtar", func(testing.TB) []cell.Cell {
		return []cell.Cell{
			cell.Provide(
				devices.NewTable, devices.NewAddressTable, devices.NewRouteTable, localnode.NewTable,
				statedb.RWTable[*devices.Device].ToTable, statedb.RWTable[devices.Address].ToTable,
				statedb.RWTable[*devices.Route].ToTable, statedb.RWTable[*localnode.LocalNode].ToTable,
			),
			agentconfig.Cell,
			Cell,
		}
	})
}

func TestNewSettings_NamesTheFlag(t *testing.T) {
	t.Parallel()
	for mtu, ok := range map[int]bool{0: true, 1280: true, 1500: true, 65535: true, -1: false, 1: false, 1279: false, 65536: false} {
		if _, err := newSettings(Config{MTU: mtu}, agentconfig.Agent{}); (err == nil) != ok {
			t.Errorf("--mtu=%d: error %v, accepted should be %v", mtu, err, ok)
		}
	}
}

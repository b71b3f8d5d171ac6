package nodeaddressfinder

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/hivetest"
	"github.com/cilium/statedb"
	"github.com/spf13/pflag"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/hive"
	"github.com/waggle-net/waggle/pkg/tables/devices"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/nodeaddresses"
	"github.com/waggle-net/waggle/pkg/testseed"
)

func TestScripts(t *testing.T) {
	t.Parallel()
	celltest.RunVirtual(t, "testdata/*.txtar", func(testing.TB) []cell.Cell {
		return []cell.Cell{
			agentconfig.Cell,
			cell.Provide(
				devices.NewTable, devices.NewAddressTable,
				statedb.RWTable[*devices.Device].ToTable, statedb.RWTable[devices.Address].ToTable,
				k8s.NewNodeTable, statedb.RWTable[*k8s.Node].ToTable,
			),
			Cell,
		}
	})
}

// TestController_FollowsWithin20Milliseconds changes addresses, devices and the Node at random times. The controller must watch all inputs: a table that is not
// watched delays the row until another input changes.
func TestController_FollowsWithin20Milliseconds(t *testing.T) {
	t.Parallel()
	random := testseed.New(t)
	synctest.Test(t, func(t *testing.T) {
		var db *statedb.DB
		var devs statedb.RWTable[*devices.Device]
		var addrs statedb.RWTable[devices.Address]
		var nodes statedb.RWTable[*k8s.Node]
		var table statedb.Table[nodeaddresses.Address]
		h := hive.New(celltest.Infrastructure(), agentconfig.Cell, cell.Provide(
			devices.NewTable, devices.NewAddressTable,
			statedb.RWTable[*devices.Device].ToTable, statedb.RWTable[devices.Address].ToTable,
			k8s.NewNodeTable, statedb.RWTable[*k8s.Node].ToTable,
		), Cell, cell.Invoke(func(d *statedb.DB, v statedb.RWTable[*devices.Device], a statedb.RWTable[devices.Address], n statedb.RWTable[*k8s.Node],
			t statedb.Table[nodeaddresses.Address]) {
			db, devs, addrs, nodes, table = d, v, a, n, t
		}))
		flags := pflag.NewFlagSet("", pflag.ContinueOnError)
		h.RegisterFlags(flags)
		if err := flags.Parse([]string{"--node-name=bee"}); err != nil {
			t.Fatal(err)
		}
		log := hivetest.Logger(t, hivetest.LogLevel(slog.LevelWarn))
		if err := h.Start(log, t.Context()); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := h.Stop(log, context.Background()); err != nil {
				t.Error(err)
			}
		}()
		// change writes to the tables and expects the new addresses within the time.
		change := func(do func(statedb.WriteTxn), want string) {
			t.Helper()
			time.Sleep(time.Duration(random.Int64N(int64(100 * time.Millisecond))))
			began := time.Now()
			txn := db.WriteTxn(devs, addrs, nodes)
			do(txn)
			txn.Commit()
			has := func() string {
				synctest.Wait()
				text := ""
				for a := range table.All(db.ReadTxn()) {
					if a.Primary {
						text += a.Addr.String() + " "
					}
				}
				return text
			}
			for has() != want && time.Since(began) < time.Second {
				time.Sleep(time.Millisecond)
			}
			if took := time.Since(began); took > settle {
				t.Errorf("%q after %v, want %q within %v", has(), took, want, settle)
			}
		}
		for range 20 {
			change(func(txn statedb.WriteTxn) {
				_, _, _ = addrs.Insert(txn, address(2, "192.0.2.1/24", 0))
				_, _, _ = addrs.Insert(txn, address(3, "192.0.2.2/24", 0))
			}, "")
			change(func(txn statedb.WriteTxn) { _, _, _ = devs.Insert(txn, links[3]) }, "192.0.2.2 ")
			change(func(txn statedb.WriteTxn) { _, _, _ = devs.Insert(txn, links[2]) }, "192.0.2.1 ")
			change(func(txn statedb.WriteTxn) {
				_, _, _ = nodes.Insert(txn, &k8s.Node{Name: "bee", Addresses: []k8s.NodeAddress{{Type: "InternalIP", Address: "192.0.2.2"}}})
			}, "192.0.2.2 ")
			change(func(txn statedb.WriteTxn) { _ = nodes.DeleteAll(txn) }, "192.0.2.1 ")
			change(func(txn statedb.WriteTxn) { _, _, _ = addrs.Delete(txn, address(2, "192.0.2.1/24", 0)) }, "192.0.2.2 ")
			change(func(txn statedb.WriteTxn) { _ = devs.DeleteAll(txn); _ = addrs.DeleteAll(txn) }, "")
		}
	})
}

// links are two uplinks, a pod link and devices of the agent.
var links = map[int]*devices.Device{
	1: {Index: 1, Name: "lo"},
	2: {Index: 2, Name: "eth0", Selected: true},
	3: {Index: 3, Name: "eth1", Selected: true},
	4: {Index: 4, Name: "lxc0123456789ab"},
	5: {Index: 5, Name: "waggle_host"},
	6: {Index: 6, Name: "waggle_net"},
	7: {Index: 7, Name: "br0"},
}

func address(link int, prefix string, scope uint8) devices.Address {
	return devices.Address{LinkIndex: link, Prefix: netip.MustParsePrefix(prefix), Scope: scope}
}

func TestCompute(t *testing.T) {
	t.Parallel()
	both := rules{maxScope: linkScope - 1, ipv4: true, ipv6: true}
	secondary := address(2, "192.0.2.1/24", 0)
	secondary.Secondary = true
	fleeting := address(2, "2001:db8::2/64", 0)
	fleeting.Fleeting = true
	tentative := address(2, "2001:db8::1/64", 0)
	tentative.Tentative = true
	for name, c := range map[string]struct {
		rules rules
		addrs []devices.Address
		want  string // "addr@device", P primary, N NodePort, S source
	}{
		"none":                                {both, nil, ""},
		"private after public":                {both, []devices.Address{address(2, "10.0.0.5/8", 0), address(3, "198.51.100.1/24", 0)}, "198.51.100.1@eth1PNS 10.0.0.5@eth0NS "},
		"older device first":                  {both, []devices.Address{address(3, "10.0.0.3/8", 0), address(2, "10.0.0.9/8", 0)}, "10.0.0.9@eth0PNS 10.0.0.3@eth1NS "},
		"one NodePort address for a family":   {both, []devices.Address{address(2, "10.0.0.5/8", 0), address(2, "10.0.0.6/8", 0), address(2, "fd00::5/64", 0)}, "10.0.0.5@eth0PNS 10.0.0.6@eth0 fd00::5@eth0PNS "},
		"secondary last":                      {both, []devices.Address{secondary, address(2, "192.0.2.9/24", 0)}, "192.0.2.9@eth0PNS 192.0.2.1@eth0 "},
		"our gateway is no primary":           {both, []devices.Address{address(5, "10.1.0.1/32", 0), address(5, "fd00::1/128", 0)}, "10.1.0.1@waggle_host fd00::1@waggle_host "},
		"links of pods and of the agent":      {both, []devices.Address{address(4, "10.1.0.2/32", 0), address(6, "10.1.0.3/32", 0)}, ""},
		"InternalIP first":                    {both, []devices.Address{address(3, "10.0.0.77/8", 0), address(2, "198.51.100.1/24", 0)}, "10.0.0.77@eth1PNS 198.51.100.1@eth0NS "},
		"InternalIP first, even on a bridge":  {both, []devices.Address{address(7, "10.0.0.77/8", 0), address(2, "198.51.100.1/24", 0)}, "10.0.0.77@br0P 198.51.100.1@eth0NS "},
		"permanent first":                     {both, []devices.Address{fleeting, address(2, "fd00::5/64", 0)}, "fd00::5@eth0PNS 2001:db8::2@eth0 "},
		"scope of a link":                     {both, []devices.Address{address(2, "fe80::1/64", 253), address(1, "127.0.0.1/8", 254)}, ""},
		"loopback of a wide scope":            {rules{maxScope: 255, ipv4: true}, []devices.Address{address(1, "127.0.0.1/8", 254), address(1, "192.0.2.7/32", 0)}, "192.0.2.7@loP "},
		"an address whose device is unknown":  {both, []devices.Address{address(99, "10.0.0.5/8", 0)}, ""},
		"a tentative address":                 {both, []devices.Address{tentative}, ""},
		"a disabled family":                   {rules{maxScope: 252, ipv4: true}, []devices.Address{address(2, "2001:db8::1/64", 0)}, ""},
		"a device that is not external":       {both, []devices.Address{address(7, "198.51.100.9/24", 0), address(2, "10.0.0.5/8", 0)}, "10.0.0.5@eth0PNS 198.51.100.9@br0 "},
		"--nodeport-addresses names prefixes": {rules{maxScope: 252, ipv4: true, nodePort: []netip.Prefix{netip.MustParsePrefix("10.0.0.6/32")}}, []devices.Address{address(2, "10.0.0.5/8", 0), address(2, "10.0.0.6/8", 0)}, "10.0.0.5@eth0PS 10.0.0.6@eth0N "},
	} {
		got := ""
		for _, row := range compute(c.rules, func(index int) *devices.Device { return links[index] }, slices.Values(c.addrs), []netip.Addr{netip.MustParseAddr("10.0.0.77")}) {
			got += row.Addr.String() + "@" + row.Device
			if row.Primary {
				got += "P"
			}
			if row.NodePort {
				got += "N"
			}
			if row.Source {
				got += "S"
			}
			got += " "
		}
		if got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

func TestNewRules_NamesTheFlag(t *testing.T) {
	t.Parallel()
	for _, c := range []Config{{LocalMaxAddrScope: 256}, {LocalMaxAddrScope: -1}, {NodePortAddresses: []string{"10.0.0.1"}}} {
		if _, err := newRules(c, agentconfig.Agent{}); err == nil {
			t.Errorf("%+v was accepted", c)
		}
	}
}

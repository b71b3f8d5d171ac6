package nodeaddresses

import (
	"net/netip"
	"testing"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/settings"
	"github.com/waggle-net/waggle/pkg/tables/devices"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

func TestScripts(t *testing.T) {
	t.Parallel()
	celltest.Run(t, "testdata/*.txtar", func(testing.TB) []cell.Cell {
		return []cell.Cell{
			settings.Cell,
			cell.Provide(
				devices.NewTable, devices.NewAddressTable,
				statedb.RWTable[*devices.Device].ToTable, statedb.RWTable[devices.Address].ToTable,
				k8s.NewNodeTable, statedb.RWTable[*k8s.Node].ToTable,
			),
			Cell,
		}
	})
}

// links are an uplink, a second one, a pod's link and ours.
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
		"private behind public":               {both, []devices.Address{address(2, "10.0.0.5/8", 0), address(3, "198.51.100.1/24", 0)}, "198.51.100.1@eth1PNS 10.0.0.5@eth0NS "},
		"older device first":                  {both, []devices.Address{address(3, "10.0.0.3/8", 0), address(2, "10.0.0.9/8", 0)}, "10.0.0.9@eth0PNS 10.0.0.3@eth1NS "},
		"one NodePort address for a family":   {both, []devices.Address{address(2, "10.0.0.5/8", 0), address(2, "10.0.0.6/8", 0), address(2, "fd00::5/64", 0)}, "10.0.0.5@eth0PNS 10.0.0.6@eth0 fd00::5@eth0PNS "},
		"secondary last":                      {both, []devices.Address{secondary, address(2, "192.0.2.9/24", 0)}, "192.0.2.9@eth0PNS 192.0.2.1@eth0 "},
		"our gateway is no primary":           {both, []devices.Address{address(5, "10.1.0.1/32", 0), address(5, "fd00::1/128", 0)}, "10.1.0.1@waggle_host fd00::1@waggle_host "},
		"links of pods and ours":              {both, []devices.Address{address(4, "10.1.0.2/32", 0), address(6, "10.1.0.3/32", 0)}, ""},
		"by which Kubernetes knows it first":  {both, []devices.Address{address(3, "10.0.0.77/8", 0), address(2, "198.51.100.1/24", 0)}, "10.0.0.77@eth1PNS 198.51.100.1@eth0NS "},
		"only on a device that leads out":     {both, []devices.Address{address(7, "10.0.0.77/8", 0), address(2, "198.51.100.1/24", 0)}, "198.51.100.1@eth0PNS 10.0.0.77@br0 "},
		"what lasts first":                    {both, []devices.Address{fleeting, address(2, "fd00::5/64", 0)}, "fd00::5@eth0PNS 2001:db8::2@eth0 "},
		"scope of a link":                     {both, []devices.Address{address(2, "fe80::1/64", 253), address(1, "127.0.0.1/8", 254)}, ""},
		"loopback of a wide scope":            {rules{maxScope: 255, ipv4: true}, []devices.Address{address(1, "127.0.0.1/8", 254), address(1, "192.0.2.7/32", 0)}, "192.0.2.7@loP "},
		"an address whose device is unknown":  {both, []devices.Address{address(99, "10.0.0.5/8", 0)}, ""},
		"an address that is not ours yet":     {both, []devices.Address{tentative}, ""},
		"a family that is off":                {rules{maxScope: 252, ipv4: true}, []devices.Address{address(2, "2001:db8::1/64", 0)}, ""},
		"a device that does not lead out":     {both, []devices.Address{address(7, "198.51.100.9/24", 0), address(2, "10.0.0.5/8", 0)}, "10.0.0.5@eth0PNS 198.51.100.9@br0 "},
		"--nodeport-addresses names prefixes": {rules{maxScope: 252, ipv4: true, nodePort: []netip.Prefix{netip.MustParsePrefix("10.0.0.6/32")}}, []devices.Address{address(2, "10.0.0.5/8", 0), address(2, "10.0.0.6/8", 0)}, "10.0.0.5@eth0PS 10.0.0.6@eth0N "},
	} {
		got := ""
		for _, row := range compute(c.rules, links, c.addrs, []netip.Addr{netip.MustParseAddr("10.0.0.77")}) {
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
		if _, err := newRules(c, settings.Agent{}); err == nil {
			t.Errorf("%+v was accepted", c)
		}
	}
}

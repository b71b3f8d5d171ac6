package noderoutes

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/onlink"
	"github.com/waggle-net/waggle/pkg/tables/devices"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
)

// testNetwork returns the networks of a node with one device on the link of its neighbours, and a default gateway.
func testNetwork() *onlink.Network {
	route := func(dst, gw string) *devices.Route {
		r := &devices.Route{Table: 254, Dst: netip.MustParsePrefix(dst), LinkIndex: 2, Type: 1, Protocol: 2}
		if gw != "" {
			r.Gw = netip.MustParseAddr(gw)
		}
		return r
	}
	own := route("10.0.3.0/24", "") // of a previous run; must not count as a connected network
	own.Protocol = 87
	return onlink.Read([]*devices.Route{route("192.0.2.0/24", ""), route("0.0.0.0/0", "192.0.2.254"), route("2001:db8::/64", ""), own},
		[]*devices.Device{{Index: 2, Name: "eth0"}})
}

func nodeWith(name, addr string, cidrs ...string) *nodes.Node {
	n := &nodes.Node{Name: name, Source: nodes.Kubernetes, Addresses: []nodes.Address{{Type: nodes.InternalIP, Addr: netip.MustParseAddr(addr)}}}
	for _, c := range cidrs {
		n.CIDRs = append(n.CIDRs, netip.MustParsePrefix(c))
	}
	return n
}

func TestRoutes_SingleNode(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		node    *nodes.Node
		want    string
		problem string
	}{
		"on the link":                     {nodeWith("a", "192.0.2.2", "10.0.1.0/24", "10.0.3.0/24"), "10.0.1.0/24 via 192.0.2.2 eth0, 10.0.3.0/24 via 192.0.2.2 eth0", ""},
		"IPv6":                            {nodeWith("a", "2001:db8::2", "fd00:1::/64"), "fd00:1::/64 via 2001:db8::2 eth0", ""},
		"without pods":                    {nodeWith("a", "198.51.100.1"), "", ""},
		"behind a gateway":                {nodeWith("a", "198.51.100.1", "10.0.1.0/24"), "", "the gateway 192.0.2.254 leads to its address 198.51.100.1"},
		"no way":                          {nodeWith("a", "2001:db8:9::2", "fd00:1::/64"), "", "no route leads to its address"},
		"no address":                      {nodeWith("a", "192.0.2.2", "fd00:1::/64"), "", "it has no address of the family of fd00:1::/64"},
		"a part of the network":           {nodeWith("a", "192.0.2.2", "192.0.2.128/25", "10.0.1.0/24"), "10.0.1.0/24 via 192.0.2.2 eth0", "lies in the subnet of eth0"},
		"the network itself":              {nodeWith("a", "192.0.2.2", "192.0.2.0/24"), "", "lies in the subnet of eth0"},
		"more than the network":           {nodeWith("a", "192.0.2.2", "192.0.0.0/16"), "192.0.0.0/16 via 192.0.2.2 eth0", ""},
		"only an ExternalIP on this node": {&nodes.Node{Name: "a", Addresses: []nodes.Address{{Type: nodes.ExternalIP, Addr: netip.MustParseAddr("192.0.2.7")}}, CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.1.0/24")}}, "10.0.1.0/24 via 192.0.2.7 eth0", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			routes, problems := routesTo(test.node, 0, testNetwork())
			var got []string
			for _, r := range routes {
				got = append(got, r.Dst.String()+" via "+r.Gw.String()+" "+r.Device)
			}
			if text := strings.Join(got, ", "); text != test.want {
				t.Errorf("routes %q, want %q", text, test.want)
			}
			if err := errors.Join(problems...); (err == nil) != (test.problem == "") || err != nil && !strings.Contains(err.Error(), test.problem) {
				t.Errorf("problems %v, want %q", err, test.problem)
			}
		})
	}
}

// With a default route without a gateway, every node is a neighbour, and no pod range is in a subnet.
func TestRoutes_DefaultRouteWithoutGateway(t *testing.T) {
	t.Parallel()
	n := onlink.Read([]*devices.Route{{Table: 254, Dst: netip.MustParsePrefix("0.0.0.0/0"), LinkIndex: 2, Type: 1, Protocol: 2}}, []*devices.Device{{Index: 2, Name: "eth0"}})
	routes, problems := routesTo(nodeWith("a", "198.51.100.1", "10.0.1.0/24"), 0, n)
	if len(routes) != 1 || len(problems) > 0 {
		t.Errorf("routes %v, problems %v", routes, problems)
	}
}

func TestConfig_SkippingNeedsRoutes(t *testing.T) {
	t.Parallel()
	if err := (Config{DirectRoutingSkipUnreachable: true}).validate(agentconfig.Agent{}); err == nil {
		t.Error("no error")
	}
	if err := (Config{AutoDirectNodeRoutes: true}).validate(agentconfig.Agent{TunnelPort: 8472}); err == nil || !strings.Contains(err.Error(), "remove it, or set --routing-mode=native") {
		t.Errorf("with a tunnel: %v", err)
	}
	if err := (Config{AutoDirectNodeRoutes: true, DirectRoutingSkipUnreachable: true}).validate(agentconfig.Agent{}); err != nil {
		t.Error(err)
	}
}

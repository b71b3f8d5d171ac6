package nodes

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
	tables "github.com/waggle-net/waggle/pkg/tables/nodes"
)

var self = &localnode.LocalNode{Name: "self", IPv4: localnode.Family{AllocRange: netip.MustParsePrefix("10.0.0.0/24"),
	Router: netip.MustParseAddr("10.0.0.1"), NodeIP: netip.MustParseAddr("192.0.2.1")},
	Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("198.51.100.1")}}

// node is a Node with an internal address and ranges.
func node(name string, created int64, address string, cidrs ...string) *k8s.Node {
	return &k8s.Node{Name: name, UID: "uid-" + name, Created: created, PodCIDRs: cidrs,
		Addresses: []k8s.NodeAddress{{Type: "Hostname", Address: name}, {Type: tables.InternalIP, Address: address}}}
}

// ciliumNode is a CiliumNode with an internal address and ranges.
func ciliumNode(name string, created int64, address string, cidrs ...string) *cilium.Node {
	return &cilium.Node{Name: name, UID: "cn-" + name, Created: created, PodCIDRs: cidrs,
		Addresses: []cilium.NodeAddress{{Type: tables.InternalIP, IP: address}}}
}

// said returns a row as one line, with the refused claims.
func said(n *tables.Node) string {
	cells := n.TableRow()
	return strings.Join(slices.DeleteFunc(cells[1:], func(c string) bool { return c == "" }), " | ")
}

func TestResolve_WhoHasWhat(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		nodes  []*k8s.Node
		cilium []*cilium.Node
		want   map[string]string
	}{
		"a Node and its CiliumNode": {
			[]*k8s.Node{node("a", 1, "192.0.2.2", "10.0.1.0/24")},
			[]*cilium.Node{{Name: "a", PodCIDRs: []string{"10.0.1.0/24", "10.1.1.0/24"}, HealthIPv4: "10.0.1.9",
				Addresses: []cilium.NodeAddress{{Type: tables.InternalIP, IP: "192.0.2.2"}, {Type: tables.CiliumInternalIP, IP: "10.0.1.1"}}}},
			map[string]string{"a": "custom-resource | InternalIP=192.0.2.2,CiliumInternalIP=10.0.1.1,HealthIP=10.0.1.9 | 10.0.1.0/24,10.1.1.0/24"},
		},
		"two nodes with one address: the older one has it": {
			[]*k8s.Node{node("a", 9, "192.0.2.2"), node("b", 1, "192.0.2.2")}, nil,
			map[string]string{"a": "kubernetes | 192.0.2.2: is an address of node b", "b": "kubernetes | InternalIP=192.0.2.2"},
		},
		"an address in a range of another node's pods": {
			[]*k8s.Node{node("a", 1, "10.0.2.7"), node("b", 9, "192.0.2.3", "10.0.2.0/24")}, nil,
			map[string]string{"a": "kubernetes | 10.0.2.7: lies in a range of pods of node b", "b": "kubernetes | InternalIP=192.0.2.3 | 10.0.2.0/24"},
		},
		"claims of a CiliumNode against a Node, whatever their age": {
			[]*k8s.Node{node("a", 9, "192.0.2.2", "10.0.1.0/24")},
			[]*cilium.Node{ciliumNode("b", 1, "192.0.2.2", "10.0.1.0/25", "10.0.1.0/24", "10.0.0.0/16", "192.0.2.0/24")},
			map[string]string{"a": "kubernetes | InternalIP=192.0.2.2 | 10.0.1.0/24",
				"b": "custom-resource | 192.0.2.2: is an address of node a; 10.0.1.0/25: lies in a range of pods of node a; 10.0.1.0/24: lies in a range of pods of node a; 2 more"},
		},
		"a wide range counts around narrower ones without addresses of nodes": {
			[]*k8s.Node{node("a", 1, "192.0.2.2", "172.16.1.0/24")},
			[]*cilium.Node{ciliumNode("b", 9, "192.0.2.3", "172.16.0.0/16")},
			map[string]string{"a": "kubernetes | InternalIP=192.0.2.2 | 172.16.1.0/24", "b": "custom-resource | InternalIP=192.0.2.3 | 172.16.0.0/16"},
		},
		"claims of the local node win": {
			[]*k8s.Node{node("a", 1, "198.51.100.1", "10.0.0.128/25"), node("self", 9, "192.0.2.1", "10.0.0.0/24")},
			[]*cilium.Node{ciliumNode("self", 9, "203.0.113.1", "10.7.0.0/24")},
			map[string]string{"a": "kubernetes | 10.0.0.128/25: lies in a range of pods of node self; 198.51.100.1: is an address of node self",
				"self": "local | InternalIP=192.0.2.1,CiliumInternalIP=10.0.0.1 | 10.0.0.0/24"},
		},
		"bad input": {
			nil, []*cilium.Node{
				{Name: "empty"},
				ciliumNode("a", 1, "127.0.0.1", "0.0.0.0/0", "127.0.0.0/8", "nonsense"),
				ciliumNode("b", 1, "224.0.0.1", "fe80::/64", "::ffff:10.0.0.0/120"),
			},
			map[string]string{"empty": "custom-resource",
				"a": "custom-resource | 127.0.0.1: is not a usable node address; 0.0.0.0/0: is not a usable pod range; 127.0.0.0/8: is not a usable pod range; 1 more",
				"b": "custom-resource | 224.0.0.1: is not a usable node address; fe80::/64: is not a usable pod range; ::ffff:10.0.0.0/120: is not a usable pod range"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := map[string]string{}
			for _, row := range resolve(self, test.nodes, test.cilium) {
				got[row.Name] = said(row)
			}
			if _, ok := got["self"]; !ok {
				t.Error("this node has no row")
			}
			for name, want := range test.want {
				if got[name] != want {
					t.Errorf("%s:\n got %s\nwant %s", name, got[name], want)
				}
			}
		})
	}
}

// The result does not depend on the order of the objects.
func TestResolve_OrderDecidesNothing(t *testing.T) {
	t.Parallel()
	nodes := []*k8s.Node{node("a", 1, "192.0.2.2", "10.0.1.0/24"), node("b", 1, "192.0.2.2", "10.0.1.0/25"), node("c", 0, "10.0.1.3")}
	ciliumNodes := []*cilium.Node{ciliumNode("a", 1, "192.0.2.4", "10.9.0.0/16"), ciliumNode("d", 1, "192.0.2.4", "10.9.0.0/16")}
	want := resolve(self, nodes, ciliumNodes)
	slices.Reverse(nodes)
	slices.Reverse(ciliumNodes)
	if got := resolve(self, nodes, ciliumNodes); !slices.EqualFunc(got, want, (*tables.Node).Equal) {
		t.Errorf("in another order %v, want %v", got, want)
	}
}

// Readers that must not trust agents use the ranges of Nodes alone.
func TestResolve_CountsTheRangesOfTheNode(t *testing.T) {
	t.Parallel()
	rows := resolve(self, []*k8s.Node{node("a", 1, "192.0.2.2", "10.0.1.0/24", "fd00:1::/64")},
		[]*cilium.Node{ciliumNode("a", 1, "192.0.2.2", "10.0.1.0/24", "8.0.0.0/8"), ciliumNode("b", 1, "192.0.2.3", "10.0.2.0/24")})
	want := map[string][2]int{"self": {1, 0}, "a": {3, 2}, "b": {1, 0}}
	for _, row := range rows {
		if got := [2]int{len(row.CIDRs), row.FromNode}; got != want[row.Name] {
			t.Errorf("%s: %d ranges, %d of the Node, want %v", row.Name, got[0], got[1], want[row.Name])
		}
	}
}

func TestResolve_ManyClaimsAreBounded(t *testing.T) {
	t.Parallel()
	greedy := ciliumNode("greedy", 1, "192.0.2.9")
	for i := range 10_000 {
		greedy.PodCIDRs = append(greedy.PodCIDRs, fmt.Sprintf("10.%d.%d.0/24", 100+i/256, i%256))
	}
	for _, row := range resolve(self, nil, []*cilium.Node{greedy}) {
		if row.Name == "greedy" && (len(row.CIDRs) != maxClaims-1 || len(row.Refused) != 1) {
			t.Errorf("%d ranges, refused %v", len(row.CIDRs), row.Refused)
		}
	}
}

func BenchmarkResolve5000(b *testing.B) {
	var nodes []*k8s.Node
	var ciliumNodes []*cilium.Node
	for i := range 5000 {
		name, addr, cidr := fmt.Sprintf("node-%d", i), fmt.Sprintf("172.16.%d.%d", i/250, 1+i%250), fmt.Sprintf("10.%d.%d.0/24", 1+i/256, i%256)
		nodes = append(nodes, node(name, int64(i), addr, cidr))
		ciliumNodes = append(ciliumNodes, ciliumNode(name, int64(i), addr, cidr))
	}
	for b.Loop() {
		resolve(self, nodes, ciliumNodes)
	}
}

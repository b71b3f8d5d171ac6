package nodelist

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/podpools"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/testseed"
)

var self = &localnode.LocalNode{Name: "self", IPv4: localnode.Family{AllocRange: netip.MustParsePrefix("10.0.0.0/24"),
	Router: netip.MustParseAddr("10.0.0.1"), NodeIP: netip.MustParseAddr("192.0.2.1")},
	Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("198.51.100.1")}}

// node is a Node with an internal address and ranges.
func node(name string, created int64, address string, cidrs ...string) *k8s.Node {
	return &k8s.Node{Name: name, UID: "uid-" + name, Created: created, PodCIDRs: cidrs,
		Addresses: []k8s.NodeAddress{{Type: "Hostname", Address: name}, {Type: nodes.InternalIP, Address: address}}}
}

// ciliumNode is a CiliumNode with an internal address and ranges.
func ciliumNode(name string, created int64, address string, cidrs ...string) *cilium.Node {
	return &cilium.Node{Name: name, UID: "cn-" + name, Created: created, PodCIDRs: cidrs,
		Addresses: []cilium.NodeAddress{{Type: nodes.InternalIP, IP: address}}}
}

// formatRow formats a row as one line, with the refused claims.
func formatRow(n *nodes.Node) string {
	cells := n.TableRow()
	return strings.Join(slices.DeleteFunc(cells[1:], func(c string) bool { return c == "" }), " | ")
}

func TestResolve_Ownership(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		nodes  []*k8s.Node
		cilium []*cilium.Node
		want   map[string]string
	}{
		"a Node and its CiliumNode": {
			[]*k8s.Node{node("a", 1, "192.0.2.2", "10.0.1.0/24")},
			[]*cilium.Node{{Name: "a", PodCIDRs: []string{"10.0.1.0/24", "fd00:1::/64"}, HealthIPv4: "10.0.1.9",
				Addresses: []cilium.NodeAddress{{Type: nodes.InternalIP, IP: "192.0.2.2"}, {Type: nodes.CiliumInternalIP, IP: "10.0.1.1"}}}},
			map[string]string{"a": "custom-resource | InternalIP=192.0.2.2,CiliumInternalIP=10.0.1.1,HealthIP=10.0.1.9 | 10.0.1.0/24,fd00:1::/64"},
		},
		"two nodes with one address: the older one is the owner": {
			[]*k8s.Node{node("a", 9, "192.0.2.2"), node("b", 1, "192.0.2.2")}, nil,
			map[string]string{"a": "kubernetes | 192.0.2.2: is an address of node b", "b": "kubernetes | InternalIP=192.0.2.2"},
		},
		"an older Node that lists the address of another one": {
			[]*k8s.Node{{Name: "a", UID: "uid-a", Created: 1, Addresses: []k8s.NodeAddress{{Type: nodes.InternalIP, Address: "192.0.2.2"}, {Type: nodes.InternalIP, Address: "192.0.2.3"}}},
				node("b", 9, "192.0.2.3")}, nil,
			map[string]string{"a": "kubernetes | InternalIP=192.0.2.2 | 192.0.2.3: is an address of node b", "b": "kubernetes | InternalIP=192.0.2.3"},
		},
		"an address in a range of another node's pods": {
			[]*k8s.Node{node("a", 1, "10.0.2.7"), node("b", 9, "192.0.2.3", "10.0.2.0/24")}, nil,
			map[string]string{"a": "kubernetes | 10.0.2.7: lies in a range of pods of node b", "b": "kubernetes | InternalIP=192.0.2.3 | 10.0.2.0/24"},
		},
		"claims of a CiliumNode against a Node, any age": {
			[]*k8s.Node{node("a", 9, "192.0.2.2", "10.0.1.0/24")},
			[]*cilium.Node{ciliumNode("b", 1, "192.0.2.2", "10.0.1.0/25", "10.0.1.0/24", "10.0.0.0/16", "192.0.2.0/24")},
			map[string]string{"a": "kubernetes | InternalIP=192.0.2.2 | 10.0.1.0/24",
				"b": "custom-resource | 10.0.1.0/25: lies in a range of pods of node a; 10.0.1.0/24: lies in a range of pods of node a; 10.0.0.0/16: contains addresses or ranges of several nodes; 2 more"},
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
		"addresses of a CiliumNode are in its ranges or in its Node": {
			[]*k8s.Node{node("a", 1, "192.0.2.2", "10.0.1.0/24"), node("b", 9, "192.0.2.3", "10.0.2.0/24")},
			[]*cilium.Node{{Name: "a", HealthIPv4: "203.0.113.7", Addresses: []cilium.NodeAddress{{Type: nodes.InternalIP, IP: "203.0.113.8"},
				{Type: nodes.CiliumInternalIP, IP: "10.0.2.7"}, {Type: nodes.CiliumInternalIP, IP: "10.0.1.1"}, {Type: nodes.CiliumInternalIP, IP: "203.0.113.9"}}},
				{Name: "c", PodCIDRs: []string{"10.0.3.0/24"}, Addresses: []cilium.NodeAddress{{Type: nodes.InternalIP, IP: "192.0.2.4"}}}},
			map[string]string{"a": "custom-resource | InternalIP=192.0.2.2,CiliumInternalIP=10.0.1.1 | 10.0.1.0/24 | 10.0.2.7: lies in a range of pods of node b; " +
				"203.0.113.9: lies in no pod range of its node; 203.0.113.7: lies in no pod range of its node",
				"c": "custom-resource | InternalIP=192.0.2.4 | 10.0.3.0/24"},
		},
		"no node can cause the rejection of another node's range": {
			[]*k8s.Node{node("a", 1, "10.0.1.7"), node("b", 9, "192.0.2.3"), node("c", 9, "192.0.2.4")},
			[]*cilium.Node{ciliumNode("a", 9, "", "10.0.1.0/25"), ciliumNode("b", 1, "", "10.0.1.0/24", "10.0.0.0/8"), ciliumNode("c", 1, "", "10.0.2.0/24")},
			map[string]string{"a": "custom-resource | InternalIP=10.0.1.7 | 10.0.1.0/25",
				"b": "custom-resource | InternalIP=192.0.2.3 | 10.0.1.0/24 | 10.0.0.0/8: contains addresses or ranges of several nodes"},
		},
		"several nodes with one range: the oldest one is the owner": {
			nil, []*cilium.Node{ciliumNode("a", 2, "192.0.2.2", "10.0.1.0/24"), ciliumNode("b", 1, "192.0.2.3", "10.0.1.0/24"), ciliumNode("c", 3, "192.0.2.4", "10.0.1.0/24")},
			map[string]string{"a": "custom-resource | InternalIP=192.0.2.2 | 10.0.1.0/24: lies in a range of pods of node b",
				"b": "custom-resource | InternalIP=192.0.2.3 | 10.0.1.0/24", "c": "custom-resource | InternalIP=192.0.2.4 | 10.0.1.0/24: lies in a range of pods of node b"},
		},
		"bad input": {
			nil, []*cilium.Node{
				{Name: "empty"},
				ciliumNode("a", 1, "127.0.0.1", "0.0.0.0/0", "127.0.0.0/8", "nonsense"),
				ciliumNode("b", 1, "224.0.0.1", "fe80::/64", "::ffff:10.0.0.0/120"),
			},
			map[string]string{"empty": "custom-resource",
				"a": "custom-resource | 0.0.0.0/0: is not a usable pod range; 127.0.0.0/8: is not a usable pod range; nonsense: is not a usable pod range; 1 more",
				"b": "custom-resource | fe80::/64: is not a usable pod range; ::ffff:10.0.0.0/120: is not a usable pod range; 224.0.0.1: is not a usable node address"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := map[string]string{}
			for _, row := range resolve(self, rules{nodesDecide: true, had: &trustedRanges{}}, test.nodes, test.cilium) {
				got[row.Name] = formatRow(row)
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

// With --ipam=cluster-pool the older kubelet of evil lists pod addresses of a, and its Node has a range that contains all others.
func TestResolve_ClusterPoolDecidesAboutRanges(t *testing.T) {
	t.Parallel()
	evil := node("evil", 1, "192.0.2.9", "10.0.0.0/8")
	for _, addr := range []string{"10.0.1.7", "10.0.1.8", "10.0.3.7", "192.0.2.2", "198.51.100.9"} {
		evil.Addresses = append(evil.Addresses, k8s.NodeAddress{Type: nodes.ExternalIP, Address: addr})
	}
	previous := ciliumNode("a", 9, "", "10.0.1.0/24")
	previous.Annotations = map[string]string{ciliumv2.PodRangesAnnotation: "10.0.3.0/24"}
	objects := []*k8s.Node{evil, node("a", 9, "192.0.2.2", "10.7.1.0/24"), node("b", 9, "192.0.2.3"), node("c", 9, "192.0.2.4", "10.0.4.0/24")}
	want := map[string]string{
		"self": "local | InternalIP=192.0.2.1,CiliumInternalIP=10.0.0.1 | 10.0.0.0/24",
		"a":    "custom-resource | InternalIP=192.0.2.2 | 10.0.1.0/24,10.0.3.0/24(former)",
		"b":    "custom-resource | InternalIP=192.0.2.3 | 10.0.2.0/24",
		"evil": "kubernetes | InternalIP=192.0.2.9,ExternalIP=198.51.100.9 | 10.0.0.0/8: contains addresses or ranges of several nodes; 10.0.1.7: lies in a range of pods of node a; " +
			"10.0.1.8: lies in a range of pods of node a; 2 more",
		"c": "kubernetes | InternalIP=192.0.2.4 | 10.0.4.0/24",
	}
	got := map[string]string{}
	for _, row := range resolve(self, rules{had: &trustedRanges{}}, objects, []*cilium.Node{previous, ciliumNode("b", 9, "", "10.0.2.0/24")}) {
		got[row.Name] = formatRow(row)
	}
	if !maps.Equal(got, want) {
		t.Errorf("got %v\nwant %v", got, want)
	}
}

// With a configured pool of --ipam=cluster-pool, the older kubelet of evil lists the address of a pod as its main address. A pool with the address of this node
// also contains addresses of other nodes.
func TestResolve_MainAddressInTheRangeOfAnotherNode(t *testing.T) {
	t.Parallel()
	const pod = "10.128.1.7"
	objects := []*k8s.Node{node("evil", 1, pod), node("a", 9, "192.0.2.2"), node("b", 9, "10.128.9.1")}
	ciliumNodes := []*cilium.Node{ciliumNode("a", 9, "", "10.128.1.0/24"), ciliumNode("b", 9, "", "10.0.2.0/24")}
	for pool, want := range map[string]map[string]string{
		"10.128.0.0/14": {"evil": "kubernetes | 10.128.1.7: lies in a range of pods of node a", "b": "custom-resource | InternalIP=10.128.9.1 | 10.0.2.0/24"},
		"10.192.0.0/14": {"evil": "kubernetes | InternalIP=10.128.1.7", "b": "custom-resource | InternalIP=10.128.9.1 | 10.0.2.0/24"},
		"0.0.0.0/0":     {"evil": "kubernetes | InternalIP=10.128.1.7", "b": "custom-resource | InternalIP=10.128.9.1 | 10.0.2.0/24"},
	} {
		got := map[string]string{}
		for _, row := range resolve(self, rules{had: &trustedRanges{}, pools: podpools.Pools{netip.MustParsePrefix(pool)}}, objects, ciliumNodes) {
			got[row.Name] = formatRow(row)
		}
		if want["a"] = "custom-resource | InternalIP=192.0.2.2 | 10.128.1.0/24"; got["a"] != want["a"] || got["b"] != want["b"] || got["evil"] != want["evil"] {
			t.Errorf("pool %s: got %v\nwant %v", pool, got, want)
		}
	}
}

// With --ipam=kubernetes ranges are taken from Nodes. An agent claims other ranges although its Node has one.
func TestResolve_NodesDecideAboutRanges(t *testing.T) {
	t.Parallel()
	objects := []*k8s.Node{node("a", 1, "192.0.2.2", "10.0.1.0/24"), node("b", 1, "192.0.2.3")}
	ciliumNodes := []*cilium.Node{ciliumNode("a", 1, "", "10.0.1.0/24", "10.0.1.0/25", "8.0.0.0/8", "fd00:1::/64"), ciliumNode("b", 1, "", "10.0.2.0/24")}
	want := map[bool]string{
		false: "custom-resource | InternalIP=192.0.2.2 | 10.0.1.0/24,10.0.1.0/25,8.0.0.0/8,fd00:1::/64",
		true:  "custom-resource | InternalIP=192.0.2.2 | 10.0.1.0/24,10.0.1.0/25,fd00:1::/64 | 8.0.0.0/8: lies in no pod range of its Node",
	}
	for decide, want := range want {
		got := map[string]string{}
		for _, row := range resolve(self, rules{nodesDecide: decide, had: &trustedRanges{}}, objects, ciliumNodes) {
			got[row.Name] = formatRow(row)
		}
		if got["a"] != want || got["b"] != "custom-resource | InternalIP=192.0.2.3 | 10.0.2.0/24" {
			t.Errorf("Nodes decide: %t: got %v, want %s", decide, got, want)
		}
	}
}

// A node has previous ranges while its agent lists them and no other node owns them. With nodesDecide, previous versions of its Node must have listed the ranges.
func TestResolve_PreviousRanges(t *testing.T) {
	t.Parallel()
	noting := func(ranges string, present ...string) *cilium.Node {
		n := ciliumNode("a", 1, "", present...)
		n.Annotations = map[string]string{ciliumv2.PodRangesAnnotation: ranges}
		n.Addresses = append(n.Addresses, cilium.NodeAddress{Type: nodes.CiliumInternalIP, IP: "10.0.1.1"})
		return n
	}
	saw := newTrustedRanges(agentconfig.Agent{}, nil)
	saw.take("a", prefixes("10.0.1.0/24"))
	const both = "custom-resource | InternalIP=192.0.2.2,CiliumInternalIP=10.0.1.1 | 10.0.2.0/24,10.0.1.0/24(former)"
	for name, test := range map[string]struct {
		decide bool
		had    *trustedRanges
		nodes  []*k8s.Node
		cilium []*cilium.Node
		want   string
	}{
		"its agent notes one": {false, &trustedRanges{}, []*k8s.Node{node("a", 1, "192.0.2.2")}, []*cilium.Node{noting("10.0.1.0/24,10.0.2.0/24", "10.0.2.0/24")}, both},
		"owned by another node": {false, &trustedRanges{}, []*k8s.Node{node("a", 1, "192.0.2.2"), node("b", 9, "192.0.2.3")},
			[]*cilium.Node{noting("10.0.1.0/24", "10.0.2.0/24"), ciliumNode("b", 9, "", "10.0.1.0/24")},
			"custom-resource | InternalIP=192.0.2.2 | 10.0.2.0/24 | 10.0.1.1: lies in a range of pods of node b"},
		"previously in its Node": {true, saw, []*k8s.Node{node("a", 1, "192.0.2.2", "10.0.2.0/24")}, []*cilium.Node{noting("10.0.1.0/24,8.0.0.0/8")}, both},
		"never in its Node": {true, &trustedRanges{}, []*k8s.Node{node("a", 1, "192.0.2.2", "10.0.2.0/24")}, []*cilium.Node{noting("10.0.1.0/24")},
			"custom-resource | InternalIP=192.0.2.2 | 10.0.2.0/24 | 10.0.1.1: lies in no pod range of its node"},
	} {
		for _, row := range resolve(self, rules{nodesDecide: test.decide, had: test.had}, test.nodes, test.cilium) {
			if got := formatRow(row); row.Name == "a" && got != test.want {
				t.Errorf("%s:\n got %s\nwant %s", name, got, test.want)
			}
		}
	}
}

// Independently of the CiliumNode of one node, the other nodes keep their addresses, and their ranges if these are in their Nodes.
func TestResolve_HostileCiliumNode(t *testing.T) {
	t.Parallel()
	random := testseed.New(t)
	claims := []string{"192.0.2.1", "192.0.2.2", "192.0.2.3", "10.0.0.1", "10.0.1.1", "10.0.2.1", "10.0.2.9", "203.0.113.1", "fd00:1::1"}
	ranges := []string{"192.0.2.2/32", "192.0.2.0/24", "10.0.0.0/8", "10.0.0.0/16", "10.0.1.0/24", "10.0.2.0/25", "10.0.2.7/32", "fd00:1::/64", "fd00::/16", "203.0.113.0/24"}
	some := func(from []string) (list []string) {
		for _, text := range from {
			if random.IntN(3) == 0 {
				list = append(list, text)
			}
		}
		return list
	}
	rejected := 0
	for range 3000 {
		inNode := random.IntN(2) == 0
		var objects []*k8s.Node
		var ciliumNodes []*cilium.Node
		for i, name := range []string{"a", "b"} {
			own := []string{fmt.Sprintf("10.0.%d.0/24", 1+i), fmt.Sprintf("fd00:%d::/64", 1+i)}
			objects = append(objects, node(name, random.Int64N(3), fmt.Sprint("192.0.2.", 2+i), own[:map[bool]int{true: 2}[inNode]]...))
			ciliumNodes = append(ciliumNodes, &cilium.Node{Name: name, UID: name, Created: objects[i].Created, PodCIDRs: own,
				Addresses: []cilium.NodeAddress{{Type: nodes.CiliumInternalIP, IP: fmt.Sprintf("10.0.%d.1", 1+i)}}, HealthIPv6: fmt.Sprintf("fd00:%d::2", 1+i)})
		}
		want := map[string]*nodes.Node{}
		for _, row := range resolve(self, rules{nodesDecide: inNode, had: &trustedRanges{}}, objects, ciliumNodes) {
			want[row.Name] = row
		}
		evil := &cilium.Node{Name: "evil", UID: "evil", Created: random.Int64N(3), PodCIDRs: some(ranges),
			Annotations: map[string]string{ciliumv2.PodRangesAnnotation: strings.Join(some(ranges), ",")}}
		for _, text := range some(claims) {
			evil.Addresses = append(evil.Addresses, cilium.NodeAddress{Type: []string{nodes.InternalIP, nodes.CiliumInternalIP}[random.IntN(2)], IP: text})
		}
		if health := some(claims); len(health) > 0 {
			evil.HealthIPv4 = health[0]
		}
		for _, row := range resolve(self, rules{nodesDecide: inNode, had: &trustedRanges{}}, append(objects, node("evil", random.Int64N(3), "192.0.2.4")), append(ciliumNodes, evil)) {
			if row.Name == "evil" {
				rejected += len(row.Refused)
				continue
			}
			same := row.Equal(want[row.Name])
			if !inNode { // an older range in a CiliumNode has precedence; the admission policy prevents agents from writing one
				same = row.Address(false) == want[row.Name].Address(false)
			}
			if !same {
				t.Fatalf("beside %+v: %+v, want %+v", evil, row, want[row.Name])
			}
		}
	}
	if rejected == 0 {
		t.Error("nothing was refused")
	}
}

// The result does not depend on the order of the objects.
func TestResolve_IndependentOfOrder(t *testing.T) {
	t.Parallel()
	k8sNodes := []*k8s.Node{node("a", 1, "192.0.2.2", "10.0.1.0/24"), node("b", 1, "192.0.2.2", "10.0.1.0/25"), node("c", 0, "10.0.1.3")}
	ciliumNodes := []*cilium.Node{ciliumNode("a", 1, "192.0.2.4", "10.9.0.0/16"), ciliumNode("d", 1, "192.0.2.4", "10.9.0.0/16")}
	want := resolve(self, rules{had: &trustedRanges{}}, k8sNodes, ciliumNodes)
	slices.Reverse(k8sNodes)
	slices.Reverse(ciliumNodes)
	if got := resolve(self, rules{had: &trustedRanges{}}, k8sNodes, ciliumNodes); !slices.EqualFunc(got, want, (*nodes.Node).Equal) {
		t.Errorf("in another order %v, want %v", got, want)
	}
}

// Readers that must not trust agents use only the ranges of Nodes.
func TestResolve_CountsTheRangesOfTheNode(t *testing.T) {
	t.Parallel()
	rows := resolve(self, rules{nodesDecide: true, had: &trustedRanges{}}, []*k8s.Node{node("a", 1, "192.0.2.2", "10.0.1.0/24")},
		[]*cilium.Node{ciliumNode("a", 1, "192.0.2.2", "10.0.1.0/24", "fd00:1::/64"), ciliumNode("b", 1, "192.0.2.3", "10.0.2.0/24")})
	want := map[string][2]int{"self": {1, 0}, "a": {2, 1}, "b": {1, 0}}
	for _, row := range rows {
		if got := [2]int{len(row.CIDRs), row.FromNode}; got != want[row.Name] {
			t.Errorf("%s: %d ranges, %d of the Node, want %v", row.Name, got[0], got[1], want[row.Name])
		}
	}
}

// The key of a node comes from its CiliumNode, also the key of this node. A Node without a CiliumNode has none.
func TestResolve_EncryptionKey_ComesFromTheCiliumNode(t *testing.T) {
	t.Parallel()
	var objects []*cilium.Node
	for name, key := range map[string]uint8{"self": 1, "a": 3, "b": 255, "c": 0} {
		n := ciliumNode(name, 1, "")
		n.EncryptionKey = key
		objects = append(objects, n)
	}
	got := map[string]uint8{}
	for _, row := range resolve(self, rules{had: &trustedRanges{}}, []*k8s.Node{node("a", 1, "192.0.2.2"), node("d", 1, "192.0.2.3")}, objects) {
		got[row.Name] = row.EncryptionKey
	}
	if want := map[string]uint8{"self": 1, "a": 3, "b": 255, "c": 0, "d": 0}; !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestResolve_ManyClaimsAreBounded(t *testing.T) {
	t.Parallel()
	greedy := ciliumNode("greedy", 1, "192.0.2.9")
	for i := range 10_000 {
		greedy.PodCIDRs = append(greedy.PodCIDRs, fmt.Sprintf("10.%d.%d.0/24", 100+i/256, i%256))
	}
	for _, row := range resolve(self, rules{had: &trustedRanges{}}, nil, []*cilium.Node{greedy}) {
		if row.Name == "greedy" && (len(row.CIDRs) != maxClaims || len(row.Refused) != 1) {
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
		resolve(self, rules{had: &trustedRanges{}}, nodes, ciliumNodes)
	}
}

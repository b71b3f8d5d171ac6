package tests

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/events"
)

const (
	identityFar  = 0x1234  // of a pod on another node
	identityCIDR = 1 << 24 // of the named CIDR around it
)

// newPolicyNode is a node that knows an outside peer, with the identity far and inside a named CIDR.
func newPolicyNode(t *testing.T, identity uint32) *node {
	n := newNode(t)
	for _, family := range families {
		n.update(bpf.MapIpcache, bpf.NewAddrKey(outside[family]), bpf.IpcacheEntry{Identity: identity})
		n.name(netip.PrefixFrom(outside[family], 8), identityCIDR+1)
		n.name(netip.PrefixFrom(outside[family], 24), identityCIDR+2)
	}
	return n
}

// name assigns an identity to a CIDR.
func (n *node) name(prefix netip.Prefix, identity uint32) {
	n.t.Helper()
	n.update(bpf.MapCIDRs, bpf.NewLpmKey(prefix), bpf.NewCIDR(prefix, identity))
}

// classes returns one rule for each class of keys, all for port 80 of TCP from the world.
func classes() (out []rule) {
	for _, who := range []rule{{kind: bpf.PolicyAny}, {kind: bpf.PolicyIdentity, identity: 2}, {kind: bpf.PolicyCIDR, identity: identityCIDR + 2},
		{kind: bpf.PolicyCIDROutside, identity: identityCIDR + 2}} {
		out = append(out, levelsOf(who)...)
	}
	return out
}

// levelsOf returns rules for all traffic, TCP, port 80 of TCP, and ports around it.
func levelsOf(all rule) []rule {
	protocol, port, ports := all, all, all
	protocol.level, protocol.protocol = bpf.PolicyProtocol, protoTCP
	port.level, port.protocol, port.first = bpf.PolicyPort, protoTCP, 80
	ports.protocol, ports.first, ports.last = protoTCP, 70, 90
	return []rule{all, protocol, port, ports}
}

func (r rule) String() string {
	return fmt.Sprintf("kind %d, level %d, ports %d-%d, deny %v", r.kind, r.level, r.first, r.last, r.deny)
}

// Each class of keys allows exactly the named peers and ports.
func TestPrivilegedPolicy_Classes(t *testing.T) {
	t.Parallel()
	for _, r := range classes() {
		t.Run(r.String(), func(t *testing.T) {
			t.Parallel()
			n := newPolicyNode(t, 2)
			n.ingress(podA, r)
			for _, family := range families {
				packet := outsideTo(podA, outside[family], 5000, 80)
				for name, c := range map[string]struct {
					in   []byte
					want bool
				}{
					"the port":         {packet.tcp(t, "S"), true},
					"the port below":   {packet.ports(5001, 69).tcp(t, "S"), r.level < bpf.PolicyPort && r.last == 0},
					"the first port":   {packet.ports(5002, 70).tcp(t, "S"), r.level < bpf.PolicyPort},
					"the last port":    {packet.ports(5003, 90).tcp(t, "S"), r.level < bpf.PolicyPort},
					"the port above":   {packet.ports(5004, 91).tcp(t, "S"), r.level < bpf.PolicyPort && r.last == 0},
					"another protocol": {packet.ports(5005, 80).bytes(t), r.level == bpf.PolicyAll && r.last == 0},
					"no ports at all":  {packet.raw(t, 47), r.level == bpf.PolicyAll && r.last == 0},
				} {
					if got := n.ingressAllowed(podA, c.in); got != c.want {
						t.Errorf("IPv%d, %s: allowed is %v, want %v", family, name, got, c.want)
					}
				}
			}
		})
	}
}

// The same rules do not match other peers.
func TestPrivilegedPolicy_AnotherPeer(t *testing.T) {
	t.Parallel()
	for _, r := range classes() {
		t.Run(r.String(), func(t *testing.T) {
			t.Parallel()
			n := newPolicyNode(t, identityFar)
			n.ingress(podA, r)
			for _, family := range families {
				// It has another identity, but the same address. Rules for outside peers do not match a pod.
				want := r.kind == bpf.PolicyAny || r.kind == bpf.PolicyCIDR
				if got := n.ingressAllowed(podA, outsideTo(podA, outside[family], 5000, 80).tcp(t, "S")); got != want {
					t.Errorf("IPv%d: a pod in the CIDR: allowed is %v, want %v", family, got, want)
				}
				// In the wider CIDR only, and of the world.
				other := map[int]netip.Addr{4: netip.MustParseAddr("192.1.1.1"), 6: netip.MustParseAddr("20ff::1")}[family]
				want = r.kind == bpf.PolicyAny || r.kind == bpf.PolicyIdentity
				if got := n.ingressAllowed(podA, outsideTo(podA, other, 5000, 80).tcp(t, "S")); got != want {
					t.Errorf("IPv%d: outside the CIDR: allowed is %v, want %v", family, got, want)
				}
			}
		})
	}
}

// Entries for a class match identities of the class, and no others. A deny of a class takes precedence, and needs its bit in the shape.
func TestPrivilegedPolicy_IdentityClasses(t *testing.T) {
	t.Parallel()
	const cluster, namespace, other = 5, 6, identityFar
	n := newPolicyNode(t, identityFar)
	for _, has := range []bpf.IdentityClasses{{Cluster: cluster, Namespace: namespace}, {}} {
		n.update(bpf.MapIdentityClasses, uint32(identityFar), has)
		for _, class := range []uint32{cluster, namespace, other} {
			for _, r := range levelsOf(rule{kind: bpf.PolicyClass, identity: class}) {
				member := has.Cluster != 0 && class != other
				for _, family := range families {
					packet := outsideTo(podA, outside[family], 5000, 80)
					check := func(what string, in []byte, want bool) {
						t.Helper()
						if got := n.ingressAllowed(podA, in); got != want {
							t.Errorf("IPv%d, classes %+v, %s of class %d, %s: allowed is %v, want %v", family, has, r, class, what, got, want)
						}
					}
					n.ingress(podA, r)
					check("the port", packet.tcp(t, "S"), member)
					check("another port", packet.ports(5001, 91).tcp(t, "S"), member && r.level < bpf.PolicyPort && r.last == 0)
					check("another protocol", packet.ports(5002, 80).bytes(t), member && r.level == bpf.PolicyAll && r.last == 0)
					n.ingress(podA, rule{}, r.denying())
					check("denied", packet.ports(5003, 80).tcp(t, "S"), !member)
					n.facts(podA, func(f *bpf.EndpointFacts) { f.ShapeIngress &^= bpf.ShapeClasses })
					check("denied, not in the shape", packet.ports(5004, 80).tcp(t, "S"), true)
				}
			}
		}
	}
}

// Identities outside of the cluster's range have no classes: the world, and numbers beyond the end of the map.
func TestPrivilegedPolicy_IdentitiesWithoutClasses(t *testing.T) {
	t.Parallel()
	for _, identity := range []uint32{2, 65536, 0x03000001} {
		n := newPolicyNode(t, identity)
		n.ingress(podA, rule{kind: bpf.PolicyClass}, rule{kind: bpf.PolicyClass, identity: identity})
		for _, family := range families {
			n.wantIngressDrop(podA, ifUplink, outsideTo(podA, outside[family], 5000, 80).tcp(t, "S"), events.PolicyDenied)
		}
	}
}

// A class without its bit in the shape is not looked up, so that a partly written policy allows nothing.
func TestPrivilegedPolicy_OnlyTheShapeCounts(t *testing.T) {
	t.Parallel()
	n := newPolicyNode(t, 2)
	var all uint32
	for _, r := range classes() {
		all |= n.policy(policyID, r)
	}
	for _, r := range classes() {
		shape := n.policy(policyID, r)
		for _, family := range families {
			n.facts(podA, func(f *bpf.EndpointFacts) { f.PolicyIngress, f.ShapeIngress = policyID, all&^shape })
			if n.ingressAllowed(podA, outsideTo(podA, outside[family], 5000, 80).tcp(t, "S")) {
				t.Errorf("%s: allowed without its bit %#x", r, shape)
			}
		}
	}
	if all != 1<<16-1 {
		t.Errorf("the classes have the shape %#x", all)
	}
}

// For every combination of an allowing and a denying class, the deny takes precedence.
func TestPrivilegedPolicy_DenyOverAllow(t *testing.T) {
	t.Parallel()
	n := newPolicyNode(t, 2)
	for i, allow := range classes() {
		for j, deny := range classes() {
			if i == j {
				continue // the compiler keeps one of the two rules
			}
			n.ingress(podA, allow, deny.denying())
			for _, family := range families {
				in := outsideTo(podA, outside[family], 5000, 80).tcp(t, "S")
				n.wantIngressDrop(podA, ifUplink, in, events.PolicyDenyRule)
				if t.Failed() {
					t.Fatalf("IPv%d: %s against %s", family, allow, deny.denying())
				}
			}
		}
	}
	n.wantFlows(4, 0, 0)
	n.wantFlows(6, 0, 0)
}

// The type of ICMP takes the place of the port.
func TestPrivilegedPolicy_ICMPTypes(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		echo := map[int]uint16{4: 8, 6: 128}[family]
		packet := received(podA, outside[family], podA.addr(family))
		n.ingress(podA, rule{level: bpf.PolicyPort, protocol: protoICMP[family], first: echo})
		n.arrives(podA, ifUplink, packet.echo(t, false, 1))

		n.ingress(podA, rule{level: bpf.PolicyPort, protocol: protoICMP[family], first: echo + 1})
		n.wantIngressDrop(podA, ifUplink, packet.echo(t, false, 2), events.PolicyDenied)

		n.ingress(podA, rule{level: bpf.PolicyProtocol, protocol: protoICMP[10-family]})
		n.wantIngressDrop(podA, ifUplink, packet.echo(t, false, 3), events.PolicyDenied)
	})
}

// A port of SCTP does not match a port of TCP.
func TestPrivilegedPolicy_SCTP(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		n.ingress(podA, rule{level: bpf.PolicyPort, protocol: protoSCTP, first: 80})
		packet := outsideTo(podA, outside[family], 5000, 80)
		n.arrives(podA, ifUplink, packet.raw(t, protoSCTP))
		n.wantIngressDrop(podA, ifUplink, packet.tcp(t, "S"), events.PolicyDenied)
		n.wantIngressDrop(podA, ifUplink, packet.bytes(t), events.PolicyDenied)
		n.wantIngressDrop(podA, ifUplink, packet.ports(5000, 81).raw(t, protoSCTP), events.PolicyDenied)
	})
}

// Rules for peers outside the cluster match nodes only if the agent configures it.
func TestPrivilegedPolicy_CIDRsAndNodes(t *testing.T) {
	t.Parallel()
	for mode, want := range map[uint32]bool{0: false, 1: true} {
		for name, identity := range map[string]uint32{"remote node": 6, "API server": 7, "remote node by its own number": 0x02000001} {
			t.Run(fmt.Sprintf("%s, mode %d", name, mode), func(t *testing.T) {
				t.Parallel()
				n := newNodeWith(t, map[string]uint32{bpf.VariableVerdictEvents: 0, bpf.VariablePolicyCIDRNodes: mode}, nil)
				n.ingress(podA, rule{kind: bpf.PolicyCIDROutside, identity: identityCIDR + 1})
				for _, family := range families {
					n.update(bpf.MapIpcache, bpf.NewAddrKey(outside[family]), bpf.IpcacheEntry{Identity: identity})
					n.name(netip.PrefixFrom(outside[family], 8), identityCIDR+1)
					if got := n.ingressAllowed(podA, outsideTo(podA, outside[family], 5000, 80).tcp(t, "S")); got != want {
						t.Errorf("IPv%d: allowed is %v, want %v", family, got, want)
					}
				}
			})
		}
	}
}

// A peer with an unknown identity could be any peer. Only a policy without rules allows it.
func TestPrivilegedPolicy_UnknownIdentity(t *testing.T) {
	t.Parallel()
	n := newPolicyNode(t, 0)
	n.ingress(podA, rule{}, rule{kind: bpf.PolicyCIDR, identity: identityCIDR + 2})
	for _, family := range families {
		n.wantIngressDrop(podA, ifUplink, outsideTo(podA, outside[family], 5000, 80).tcp(t, "S"), events.UnknownIdentity)
	}
	n.facts(podA, func(f *bpf.EndpointFacts) { f.PolicyIngress = bpf.PolicyAllowAll })
	for _, family := range families {
		n.arrives(podA, ifUplink, outsideTo(podA, outside[family], 5000, 80).tcp(t, "S"))
	}
}

// Between pods of one node both policies are evaluated, and each can deny.
func TestPrivilegedPolicy_BothEnds(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		open := sent(podA, podA.addr(family), podB.addr(family)).ports(5000, 80)
		toB := rule{kind: bpf.PolicyIdentity, identity: podB.facts().Identity, level: bpf.PolicyPort, protocol: protoTCP, first: 80}
		fromA := toB
		fromA.identity = podA.facts().Identity

		n.egress(podA, toB)
		n.ingress(podB, fromA)
		n.passes(podA, open.tcp(t, "S"), actRedirect)
		n.wantFlows(family, 1, 0)

		// The receiver allows another peer.
		n.ingress(podB, toB)
		n.wantEgressDrop(podA, open.ports(5001, 80).tcp(t, "S"), events.PolicyDenied)
		// The sender is denied, although the receiver allows it.
		n.ingress(podB, fromA)
		n.egress(podA, fromA)
		n.wantEgressDrop(podA, open.ports(5001, 80).tcp(t, "S"), events.PolicyDenied)
		n.wantFlows(family, 1, 0)
	})
}

// A named CIDR also contains pods of this node.
func TestPrivilegedPolicy_CIDRAroundLocalPods(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		n.name(netip.PrefixFrom(podA.addr(family), 16), identityCIDR+1)
		open := sent(podA, podA.addr(family), podB.addr(family)).ports(5000, 80)
		n.ingress(podB, rule{kind: bpf.PolicyCIDROutside, identity: identityCIDR + 1})
		n.wantEgressDrop(podA, open.tcp(t, "S"), events.PolicyDenied)
		n.ingress(podB, rule{kind: bpf.PolicyCIDR, identity: identityCIDR + 1})
		n.passes(podA, open.tcp(t, "S"), actRedirect)
	})
}

// Packets that the node creates have the identity host; forwarded packets never do, whatever their address.
func TestPrivilegedPolicy_Host(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		gw := gateways[family]
		n.update(bpf.MapIpcache, bpf.NewAddrKey(gw), bpf.IpcacheEntry{Identity: 1})
		n.ingress(podA, rule{kind: bpf.PolicyIdentity, identity: 1})
		n.arrives(podA, 0, outsideTo(podA, gw, 5000, 80).tcp(t, "S"))
		n.wantIngressDrop(podA, ifUplink, outsideTo(podA, gw, 5001, 80).tcp(t, "S"), events.PolicyDenied)

		// The reply goes back to the node, and for a pod's packets the node is the host too.
		n.passes(podA, outsideTo(podA, gw, 5000, 80).back(podA).tcp(t, "SA"), actOK)
		n.egress(podA, rule{kind: bpf.PolicyIdentity, identity: 1})
		n.passes(podA, sent(podA, podA.addr(family), gw).ports(6000, 80).tcp(t, "S"), actOK)
	})
}

// With its bit, the local host is allowed even if rules deny the host, all peers or its address; other peers are not.
func TestPrivilegedPolicy_HostAlwaysAllowed(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		gw := gateways[family]
		n.update(bpf.MapIpcache, bpf.NewAddrKey(gw), bpf.IpcacheEntry{Identity: 1})
		n.name(netip.PrefixFrom(gw, 16), identityCIDR+1)
		shape := n.policy(policyID, rule{}.denying(), rule{kind: bpf.PolicyIdentity, identity: 1}.denying(),
			rule{kind: bpf.PolicyCIDR, identity: identityCIDR + 1}.denying())
		n.facts(podA, func(f *bpf.EndpointFacts) { f.PolicyIngress, f.ShapeIngress = policyID, shape })
		n.wantIngressDrop(podA, 0, outsideTo(podA, gw, 5000, 80).tcp(t, "S"), events.PolicyDenyRule)
		n.facts(podA, func(f *bpf.EndpointFacts) { f.ShapeIngress |= bpf.ShapeLocalhost })
		n.arrives(podA, 0, outsideTo(podA, gw, 5000, 80).tcp(t, "S"))
		n.wantIngressDrop(podA, ifUplink, outsideTo(podA, gw, 5001, 80).tcp(t, "S"), events.PolicyDenyRule)
		n.wantIngressDrop(podA, ifUplink, outsideTo(podA, outside[family], 5002, 80).tcp(t, "S"), events.PolicyDenyRule)

		// An endpoint that drops everything drops packets of the host too.
		n.facts(podA, func(f *bpf.EndpointFacts) { f.PolicyIngress = bpf.PolicyDropAll })
		n.wantIngressDrop(podA, 0, outsideTo(podA, gw, 5003, 80).tcp(t, "S"), events.PolicyDenied)
	})
}

// A pod that reaches itself through the stack, which may have translated its address to the node's, is never denied by its own ingress policy. Another peer
// with the pod's address is denied.
func TestPrivilegedPolicy_Loopback(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		n.closed(podA)
		for i, src := range []netip.Addr{gateways[family], podA.addr(family)} {
			in := outsideTo(podA, src, 5000+uint16(i), 80)
			n.wantIngressDrop(podA, ifUplink, in.tcp(t, "S"), events.PolicyDenied)
			n.wantIngressDrop(podA, ifPodB, in.tcp(t, "S"), events.PolicyDenied)
			n.arrives(podA, ifPodA, in.tcp(t, "S"))
		}
		n.passes(podA, outsideTo(podA, gateways[family], 5000, 80).back(podA).tcp(t, "SA"), actOK)
	})
}

// With SHAPE_NESTED, entries for a CIDR also match in the CIDRs inside it that the policy names, up to one that stops them. Without it, only entries of the
// longest CIDR match.
func TestPrivilegedPolicy_NestedCIDRs(t *testing.T) {
	t.Parallel()
	const wide, middle, narrow = identityCIDR + 1, identityCIDR + 2, identityCIDR + 3
	at := func(identity uint32, deny bool) rule {
		return rule{kind: bpf.PolicyCIDROutside, identity: identity, deny: deny}
	}
	stop := func(identity uint32) rule {
		return rule{kind: bpf.PolicyCIDR, identity: identity, level: bpf.PolicyProtocol, protocol: bpf.PolicyStop, deny: true}
	}
	for name, c := range map[string]struct {
		rules  []rule
		shape  uint32
		narrow bool // whether an address of the narrow CIDR is allowed
		wide   bool // whether an address outside of the middle CIDR is allowed
	}{
		"the wide one":                       {[]rule{at(wide, false)}, bpf.ShapeNested, true, true},
		"the wide one, as the longest":       {[]rule{at(wide, false)}, 0, false, true},
		"the middle one":                     {[]rule{at(middle, false)}, bpf.ShapeNested, true, false},
		"a deny of the wide one":             {[]rule{at(wide, true), at(narrow, false)}, bpf.ShapeNested, false, false},
		"a deny of the narrow one":           {[]rule{at(wide, false), at(narrow, true)}, bpf.ShapeNested, false, true},
		"the wide one without the middle":    {[]rule{at(wide, false), stop(middle)}, bpf.ShapeNested | bpf.ShapeStops, false, true},
		"the wide one without the narrow":    {[]rule{at(wide, false), stop(narrow)}, bpf.ShapeNested | bpf.ShapeStops, false, true},
		"an allow inside the excluded range": {[]rule{at(wide, false), stop(middle), at(narrow, false)}, bpf.ShapeNested | bpf.ShapeStops, true, true},
		"a deny, excepted":                   {[]rule{at(wide, true), stop(middle), at(middle, false)}, bpf.ShapeNested | bpf.ShapeStops, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newPolicyNode(t, 2)
			for _, family := range families {
				n.name(netip.PrefixFrom(outside[family], outside[family].BitLen()), narrow)
			}
			n.ingress(podA, c.rules...)
			n.facts(podA, func(f *bpf.EndpointFacts) { f.ShapeIngress |= c.shape })
			for _, family := range families {
				elsewhere := outside[family].AsSlice()
				elsewhere[2] ^= 0xff // inside the first 8 bits, outside of the first 24
				far, _ := netip.AddrFromSlice(elsewhere)
				n.update(bpf.MapIpcache, bpf.NewAddrKey(far), bpf.IpcacheEntry{Identity: 2})
				for _, q := range []struct {
					from netip.Addr
					want bool
				}{{outside[family], c.narrow}, {far, c.wide}} {
					if got := n.ingressAllowed(podA, outsideTo(podA, q.from, 5000, 80).tcp(t, "S")); got != q.want {
						t.Errorf("from %s: allowed is %v, want %v", q.from, got, q.want)
					}
				}
			}
		})
	}
}

// However deeply CIDRs are nested, all CIDRs around an address are found: 25 of IPv4 and 121 of IPv6.
func TestPrivilegedPolicy_DeepCIDRs(t *testing.T) {
	t.Parallel()
	n := newPolicyNode(t, 2)
	n.ingress(podA, rule{kind: bpf.PolicyCIDROutside, identity: identityCIDR + 1})
	n.facts(podA, func(f *bpf.EndpointFacts) { f.ShapeIngress |= bpf.ShapeNested })
	for _, family := range families {
		addr := outside[family]
		for bits := 9; bits <= addr.BitLen(); bits++ {
			n.name(netip.PrefixFrom(addr, bits).Masked(), identityCIDR+1000+uint32(bits))
		}
		if !n.ingressAllowed(podA, outsideTo(podA, addr, 5000, 80).tcp(t, "S")) {
			t.Errorf("IPv%d: the widest CIDR does not count", family)
		}
	}
}

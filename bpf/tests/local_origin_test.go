package tests

import (
	"net/netip"
	"testing"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/events"
)

// A flow that was allowed because the node or the pod itself created it is not reusable from outside: each packet from outside with the same address and
// ports, as after SNAT that reuses a port, is evaluated.
func TestPrivilegedLocalOrigin_OutsidePacket_IsEvaluated(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		gw := gateways[family]
		n.update(bpf.MapIpcache, bpf.NewAddrKey(gw), bpf.IpcacheEntry{Identity: 1})
		n.ingress(podA, rule{kind: bpf.PolicyIdentity, identity: 1})
		n.egress(podA)
		for i, from := range []struct {
			ifindex uint32
			src     netip.Addr
		}{{0, gw}, {ifPodA, gw}, {ifPodA, podA.addr(family)}} {
			in := outsideTo(podA, from.src, 5000+uint16(i), 80)
			back := in.back(podA)
			n.arrives(podA, from.ifindex, in.tcp(t, "S"))
			n.passes(podA, back.tcp(t, "SA"), actOK)
			n.arrives(podA, from.ifindex, in.tcp(t, "A"))
			n.passes(podA, back.tcp(t, "A"), actOK)
			n.arrives(podA, from.ifindex, in.tcp(t, "A"))

			n.wantIngressDrop(podA, ifUplink, in.tcp(t, "A"), events.PolicyDenied)
			n.arrives(podA, from.ifindex, in.tcp(t, "A"))
			n.wantIngressDrop(podA, ifUplink, in.tcp(t, "S"), events.PolicyDenied)
		}
	})
}

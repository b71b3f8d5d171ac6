package tests

import (
	"net/netip"
	"testing"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/loadbalancer"
	"github.com/waggle-net/waggle/pkg/mac"
)

// The tables of the tests below have natCapacity flows. Each endpoint may have a quarter of these, and can always have natGuarantee.
const (
	natCapacity  = 64
	natGuarantee = 2
)

// withGuarantees runs a test for each family on a node with five pods. Four of these pods can fill its table of translated flows up to their quotas.
func withGuarantees(t *testing.T, test func(t *testing.T, n *node, family int, pods []pod)) {
	for _, family := range families {
		t.Run(map[int]string{4: "IPv4", 6: "IPv6"}[family], func(t *testing.T) {
			t.Parallel()
			n := newNodeWith(t, map[string]uint32{bpf.VariableVerdictEvents: 0, bpf.VariableNatShares: natCapacity / 4, bpf.VariableNatGuarantees: natGuarantee,
				bpf.VariableNatBeyond: natCapacity / 2}, map[string]uint32{bpf.MapNat4: 2 * natCapacity, bpf.MapNat6: 2 * natCapacity})
			n.surround()
			pods := make([]pod, 5)
			for i := range pods {
				last := byte(20 + i)
				pods[i] = pod{id: uint16(last), ifindex: 200 + uint32(i), mac: mac.Addr{2, 0, 0, 0, 0, last}, host: mac.Addr{2, 0, 0, 0, 1, last},
					ipv4: netip.AddrFrom4([4]byte{10, 1, 0, last}), ipv6: netip.AddrFrom16([16]byte{0: 0xfd, 3: 1, 15: last}), policyIn: 1, pOut: 1}
				n.put(pods[i])
				n.serve(uint32(i)+1, on(balancer[family], 80+uint16(i)), loadbalancer.UDP, 0, on(pods[i].addr(family), 8080))
			}
			n.serve(6, on(balancer[family], 90), loadbalancer.UDP, 0, on(nodeOut[family], 8080)) // a pod in the host network
			test(t, n, family, pods)
		})
	}
}

// leaves sends a packet of a pod to the outside, from a separate port for each number.
func (n *node) leaves(family int, p pod, number int) outcome {
	n.t.Helper()
	return n.sendFrom(p, going(on(p.addr(family), 40000+uint16(number)), on(client[family], 53)).bytes(n.t))
}

// calls sends a packet of an outside client to a service, from a separate address for each number.
func (n *node) calls(family int, port uint16, number int) outcome {
	n.t.Helper()
	from := client[family].AsSlice()
	from[len(from)-1] = byte(number)
	from[len(from)-2] = byte(number >> 8)
	source, _ := netip.AddrFromSlice(from)
	return n.run(bpf.NetdevIngress, ifUplink, coming(on(source, 4000), on(balancer[family], port)).bytes(n.t))
}

// wantGuarantees checks that the last pod, the node, and clients of backends without a quota get their guaranteed flows, and that the table had no entry for
// most packets of a flood. opened is the number of flows of the flood.
func (n *node) wantGuarantees(family int, last pod, opened int) {
	n.t.Helper()
	if most := 4*natGuarantee + natCapacity/2; opened != most {
		n.t.Errorf("a flood opens %d flows, want %d", opened, most)
	}
	n.forgetEvents()
	n.did(n.leaves(family, last, 0), actUnspec)
	n.did(n.calls(family, 84, 1000), actUnspec)
	n.wantTranslations(last.id, family, natGuarantee)
	for i := range natGuarantee {
		n.did(n.calls(family, 90, 1000+i), actUnspec)
	}
	n.wantTranslations(0, family, natGuarantee)
	n.wantCount(bpf.MapNatTotals, bpf.NatBeyond, family, natCapacity/2)
	for i := range uint16(natGuarantee) {
		before := n.natFlows(family)
		ping := going(on(nodeOut[family], 0), on(client[family], 0)).echo(n.t, false, 50000+i)
		n.did(n.runSkb(bpf.NetdevEgress, skBuff{Ifindex: ifUplink}, ping), actUnspec)
		n.wantNat(family, before+2)
	}
	n.wantCount(bpf.MapNatTotals, bpf.NatOfNode, family, natGuarantee)
	for i := range 3 {
		if got := n.leaves(family, last, 10+i); got.action != actShot {
			n.t.Errorf("a flow beyond the guarantee: action %d, want a drop", int32(got.action))
		}
	}
	n.wantNat(family, 2*(opened+3*natGuarantee))
	n.forgetEvents()
}

// forgetEvents discards the events of dropped packets.
func (n *node) forgetEvents() {
	for n.event() != nil {
	}
}

// Four pods that open as many flows as possible leave their guarantees to every other pod, to clients of backends without a quota and to the node.
func TestPrivilegedNatGuarantee_BesidePodsAtLimit(t *testing.T) {
	t.Parallel()
	withGuarantees(t, func(t *testing.T, n *node, family int, pods []pod) {
		opened := 0
		for i := range natCapacity {
			for _, p := range pods[:4] {
				if n.leaves(family, p, i).action == actUnspec {
					opened++
				}
			}
		}
		n.wantGuarantees(family, pods[4], opened)

		// A flow that expired and starts again gets its previous entry.
		n.natExpire(family)
		n.did(n.leaves(family, pods[0], 0), actUnspec)
		n.did(n.leaves(family, pods[4], 0), actUnspec)
		n.wantCount(bpf.MapNatTotals, bpf.NatBeyond, family, natCapacity/2)
	})
}

// So does one host that sends to ports of four pods from invented sources; the pods need not reply. These pods themselves open flows from the part that
// clients leave.
func TestPrivilegedNatGuarantee_BesideSpoofedClients(t *testing.T) {
	t.Parallel()
	withGuarantees(t, func(t *testing.T, n *node, family int, pods []pod) {
		opened := 0
		for i := range natCapacity {
			for port := range uint16(4) {
				if n.calls(family, 80+port, 256+i).action == actUnspec {
					opened++
				}
			}
		}
		n.forgetEvents()
		for i := range natCapacity / 2 / 16 {
			n.did(n.leaves(family, pods[i], 0), actUnspec)
			opened++
		}
		n.wantGuarantees(family, pods[4], opened)
	})
}

// One host does not use up the quota of a pod, so the pod itself can open flows.
func TestPrivilegedNatGuarantee_ClientsLeaveAPodPartOfItsShare(t *testing.T) {
	t.Parallel()
	withGuarantees(t, func(t *testing.T, n *node, family int, pods []pod) {
		const share, clients = natCapacity / 4, natCapacity / 4 / 16 * 15
		for i := range natCapacity {
			n.calls(family, 80, 256+i)
		}
		n.wantTranslations(pods[0].id, family, clients)
		n.forgetEvents()
		for i := range share - clients {
			n.did(n.leaves(family, pods[0], i), actUnspec)
		}
		if got := n.leaves(family, pods[0], share); got.action != actShot {
			t.Errorf("a flow beyond the share: action %d, want a drop", int32(got.action))
		}
		n.wantTranslations(pods[0].id, family, share)
	})
}

// Clients whose backends have no quota leave the same guarantees to pods and the node.
func TestPrivilegedNatGuarantee_BesideClientsOfTheNode(t *testing.T) {
	t.Parallel()
	withGuarantees(t, func(t *testing.T, n *node, family int, pods []pod) {
		opened := 0
		for i := range natCapacity {
			if n.calls(family, 90, 256+i).action == actUnspec {
				opened++
			}
		}
		if want := natGuarantee + natCapacity/2/16*15; opened != want {
			t.Errorf("clients of the node open %d flows, want %d", opened, want)
		}
		n.forgetEvents()
		const left = natGuarantee + natCapacity/2/16 // left for the pod itself
		for i := range left {
			n.did(n.leaves(family, pods[0], i), actUnspec)
		}
		ping := going(on(nodeOut[family], 0), on(client[family], 0)).echo(t, false, 50000)
		n.did(n.runSkb(bpf.NetdevEgress, skBuff{Ifindex: ifUplink}, ping), actUnspec)
		n.wantNat(family, 2*(opened+left+1))
	})
}

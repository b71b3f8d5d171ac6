package tests

import (
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/loadbalancer"
)

// afterTick returns when paths of packets that were looked up before are looked up again: after the next tick of the kernel's clock, which comes within 10 ms.
func afterTick() { time.Sleep(20 * time.Millisecond) }

// Programs send the replies of a service past the stack to a client that is a pod of another node, and still translate each of them.
func TestPrivilegedReal_DirectRepliesOfServices(t *testing.T) {
	t.Parallel()
	s := newDirectNode(t, alone, bpf.NodeDirect)
	for _, family := range families {
		server, from := listenUDP(t, s.a, podA.addr(family)), listenUDP(t, s.distant, distantPod[family])
		service := netip.AddrPortFrom(nodeIn[family], 30001)
		s.exchange(t, server, listenUDP(t, s.distant, distantPod[family]), 100) // the neighbours are resolved
		s.serve(uint32(family), service, loadbalancer.UDP, 0, portOf(server))
		stack := s.forwarded(t, family)
		for range 20 {
			if seen := s.talk(t, from, service, server, 100); seen != portOf(from) {
				t.Errorf("IPv%d: the pod saw %s instead of the client %s", family, seen, portOf(from))
			}
		}
		if after := s.forwarded(t, family); after-stack > 1 { // the request that creates the entry is delivered by the stack
			t.Errorf("IPv%d: the stack has forwarded %d packets", family, after-stack)
		}
	}
}

// A process in a pod sets tc_index of its packets to the value with which netdev_egress skips its look-ups. The server still sees the address of the node.
func TestPrivilegedReal_PodsCannotEvadeMasquerade(t *testing.T) {
	t.Parallel()
	onEachLink(t, func(t *testing.T, s *surroundings) {
		s.a.Do(func() { check(t, markSent("eth0")) })
		for _, family := range families {
			server := listenUDP(t, s.clients, client[family])
			from := listenUDP(t, s.a, podA.addr(family))
			for range 4 { // the first and the established path
				if seen := s.talk(t, from, portOf(server), server, 100); seen.Addr() != nodeOut[family] {
					t.Errorf("IPv%d: the server saw %s, not the node", family, seen)
				}
			}
		}
	})
}

// markSent sets the tc_index of all packets that leave by a device to MARK_UNTRANSLATED of mark.h.
func markSent(device string) error {
	const tcIndexAt, untranslated = 44, 0x5744 // offset in struct __sk_buff
	link, err := netlink.LinkByName(device)
	if err != nil {
		return err
	}
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{
		asm.Mov.Imm(asm.R2, untranslated),
		asm.StoreMem(asm.R1, tcIndexAt, asm.R2, asm.Word),
		asm.Mov.Imm(asm.R0, -1), // TC_ACT_UNSPEC: with TC_ACT_OK the kernel resets the field
		asm.Return(),
	}})
	if err != nil {
		return err
	}
	defer program.Close()
	at := netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Parent: netlink.HANDLE_CLSACT, Handle: netlink.MakeHandle(0xffff, 0)}
	if err := netlink.QdiscAdd(&netlink.GenericQdisc{QdiscAttrs: at, QdiscType: "clsact"}); err != nil {
		return err
	}
	return netlink.FilterAdd(&netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: link.Attrs().Index, Parent: netlink.HANDLE_MIN_EGRESS, Handle: 1, Protocol: unix.ETH_P_ALL, Priority: 1},
		Fd:          program.FD(), Name: "mark", DirectAction: true,
	})
}

package tests

import (
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/events"
)

// returning makes a function of a program return a number. The original body, with the calls by which the kernel identifies functions, follows a condition
// that is never true.
func returning(t *testing.T, spec *ebpf.ProgramSpec, function string, number int32) {
	t.Helper()
	begin := slices.IndexFunc(spec.Instructions, func(i asm.Instruction) bool { return i.Symbol() == function })
	if begin < 0 {
		t.Fatalf("%s has no function %s", spec.Name, function)
	}
	body := slices.Clone(spec.Instructions[begin:])
	first := asm.Mov.Imm(asm.R0, number)
	first.Metadata, body[0].Metadata = body[0].Metadata, asm.Metadata{}
	isNil := asm.Instruction{OpCode: asm.JEq.Op(asm.ImmSource), Dst: asm.R1, Offset: 1}
	spec.Instructions = slices.Concat(spec.Instructions[:begin], asm.Instructions{first, isNil, asm.Return()}, body)
}

// An invalid verdict code, which only a bug in a program can produce, drops the packet.
func TestPrivilegedFinish_UnknownCodesDrop(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		n.surround()
		packet := coming(on(client[family], 4000), on(nodeOut[family], 53)).bytes(t)
		n.did(n.run(bpf.NetdevIngress, ifUplink, packet), actUnspec)
		for _, code := range []int32{2, 21, 1 << 30} {
			n.setProgram(bpf.NetdevIngress, n.loadChanged(bpf.NetdevIngress, func(spec *ebpf.CollectionSpec) {
				returning(t, spec.Programs[bpf.NetdevIngress], "translate", code)
			}))
			before := n.count(events.InternalError, bpf.DirectionIngress)
			n.refill(0)
			n.wantDropReason(n.run(bpf.NetdevIngress, ifUplink, packet), events.InternalError)
			if after := n.count(events.InternalError, bpf.DirectionIngress); after.Packets != before.Packets+1 {
				t.Errorf("code %d: counted %d times, want once", code, after.Packets-before.Packets)
			}
		}
	})
}

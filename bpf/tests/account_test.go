package tests

import (
	"testing"

	"github.com/cilium/ebpf"

	"github.com/waggle-net/waggle/bpf"
)

// ctExact is the number of packets of a flow that are counted one by one (CT_EXACT in conntrack.h).
const ctExact = 1024

// repeat runs a program many times with a packet that it passes to the stack unchanged.
func (n *node) repeat(program string, in skBuff, packet []byte, times uint32) {
	n.t.Helper()
	var out skBuff
	action, err := n.program(program).Run(&ebpf.RunOptions{Data: packet, DataOut: make([]byte, len(packet)+256), Context: in, ContextOut: &out, Repeat: times})
	if err != nil || action != actOK {
		n.t.Fatalf("run %s %d times: action %d: %v", program, times, int32(action), err)
	}
}

// wantPackets checks the packet count of the only established flow, within a tolerance, and its byte count.
func (n *node) wantPackets(family int, want, tolerance uint64, length int) {
	n.t.Helper()
	f := n.onlyFlow("est", family)
	if got := bpf.CtPackets(&f); got < want-tolerance || got > want+tolerance || f.Bytes != got*uint64(length) {
		n.t.Errorf("counted %d packets and %d bytes, want %d packets of %d bytes, %d more or less", got, f.Bytes, want, length, tolerance)
	}
}

// The first packets of a flow are counted one by one. The fast path counts packets of long flows by sampling, so that two CPUs with one flow do not write to
// its entry all the time. Packets that a pod receives from outside are all counted.
func TestPrivilegedAccount_LongFlowsAreSampled(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		out, in := establishOutside(t, n, family, 6000)
		packet := skBuff{Ifindex: ifPodA}
		n.repeat(bpf.PodEgress, packet, out, ctExact-3)
		n.wantPackets(family, ctExact, 0, len(out))
		n.repeat(bpf.PodEgress, packet, out, 100_000)
		n.wantPackets(family, ctExact+100_000, 200, len(out))
		n.changeFlows("est", family, func(e *bpf.CtEntry) { e.Packets, e.Bytes = ctExact, ctExact*uint64(len(in)) })
		n.repeat(bpf.PodIngress, skBuff{Ifindex: ifPodA, IngressIfindex: ifUplink}, in, 100_000)
		n.wantPackets(family, ctExact+100_000, 0, len(in))
	})
}

// establishOutside establishes a flow of pod a to a host outside, with three packets, and returns one of each direction, of one length.
func establishOutside(t *testing.T, n *node, family int, sport uint16) (out, in []byte) {
	t.Helper()
	out = sent(podA, podA.addr(family), outside[family]).ports(sport, 53).bytes(t)
	in = outsideTo(podA, outside[family], 53, sport).bytes(t)
	n.passes(podA, out, actOK)
	n.arrives(podA, ifUplink, in)
	n.passes(podA, out, actOK)
	return out, in
}

// Interleaved packets of two flows are sampled equally: no pattern of packets hides a flow.
func TestPrivilegedAccount_FlowsInTurn(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, n *node, family int) {
		const each = 4000
		var out [2][]byte
		for i := range out {
			out[i], _ = establishOutside(t, n, family, 6000+uint16(i))
		}
		n.changeFlows("est", family, func(e *bpf.CtEntry) { e.Packets = ctExact })
		for range each {
			for _, packet := range out {
				n.passes(podA, packet, actOK)
			}
		}
		flows := n.ctEntries("est", family)
		if len(flows) != len(out) {
			t.Fatalf("%d established flows", len(flows))
		}
		for _, f := range flows {
			if got := bpf.CtPackets(&f) - ctExact; got < each*9/10 || got > each*11/10 {
				t.Errorf("counted %d packets of a flow, want about %d", got, each)
			}
		}
	})
}

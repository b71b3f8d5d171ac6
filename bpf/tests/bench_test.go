package tests

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/testnet"
)

const (
	// The kernel runs the program again on its own output packet; a packet has at most 255 hops.
	benchRepeats = 60
	// PROG_TEST_RUN runs a program on this device by default.
	ifLoopback = 1
)

// newBenchNode is a node with the map of addresses of a node with 4,000 pods, whose pod a is behind the loopback device. Delivery to pod b swaps the
// addresses, so that the delivered packet can be sent again.
func newBenchNode(b *testing.B) *node {
	n := newNodeWith(b, map[string]uint32{bpf.VariableVerdictEvents: 1},
		map[string]uint32{bpf.MapPolicy: uint32(benchPolicies + 10), bpf.MapIpcache: uint32(benchAddresses + 10),
			bpf.MapCtEst4: 131072, bpf.MapCtEst6: 131072, bpf.MapCtNew4: 16384, bpf.MapCtNew6: 16384})
	from, to := podA, podB
	from.ifindex = ifLoopback
	to.mac, to.host = from.host, from.mac
	n.put(from)
	n.put(to)
	v4, v6 := netip.MustParseAddr("10.2.0.0"), netip.MustParseAddr("fd00:2::")
	for range 4000 {
		v4, v6 = v4.Next(), v6.Next()
		n.update(bpf.MapEndpoints, bpf.NewAddrKey(v4), bpf.EndpointRef{Id: 1})
		n.update(bpf.MapEndpoints, bpf.NewAddrKey(v6), bpf.EndpointRef{Id: 1})
	}
	return n
}

// typical returns the median. On a CPU that counts instructions it returns the minimum: the difference to it is an interrupt, or the write of a timestamp
// that only some rounds need.
func typical(rounds []time.Duration) time.Duration {
	slices.Sort(rounds)
	if testnet.Emulated() {
		return rounds[0]
	}
	return rounds[len(rounds)/2]
}

// measure reports the median time of a program for a packet, and the difference to an empty program.
func measure(b *testing.B, program *ebpf.Program, action uint32, packet []byte) {
	b.Helper()
	measureAgainst(b, program, emptyProgram(b), action, packet)
}

// rival is a program that is measured alternately with the program of a benchmark, with the same packet.
type rival struct {
	unit    string
	program *ebpf.Program
	ratio   bool // report the program's part of the rival's time, else the rival's time, each without the empty program's
}

// measureAgainst is [measure] with another program in place of the empty one, and with rivals.
func measureAgainst(b *testing.B, program, empty *ebpf.Program, action uint32, packet []byte, rivals ...rival) {
	b.Helper()
	var own, base []time.Duration
	others := make([][]time.Duration, len(rivals))
	run := func(p *ebpf.Program, action uint32, into *[]time.Duration) {
		got, took, err := p.Benchmark(packet, benchRepeats, nil)
		if err != nil || got != action {
			b.Fatalf("action %d, want %d: %v", int32(got), int32(action), err)
		}
		*into = append(*into, took)
	}
	for b.Loop() {
		run(program, action, &own)
		run(empty, actOK, &base)
		for i, r := range rivals {
			run(r.program, action, &others[i])
		}
	}
	gross := typical(own)
	net := gross - typical(base)
	b.ReportMetric(float64(gross.Nanoseconds()), "ns/packet")
	b.ReportMetric(float64(net.Nanoseconds()), "ns/packet-net")
	for i, r := range rivals {
		value := float64(typical(others[i]) - typical(base))
		if r.ratio {
			value = float64(net) / value
		}
		b.ReportMetric(value, r.unit)
	}
	b.ReportMetric(0, "ns/op") // an operation is two system calls and 120 packets
}

func emptyProgram(b *testing.B) *ebpf.Program {
	b.Helper()
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, actOK), asm.Return()},
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = program.Close() })
	return program
}

func BenchmarkProg(b *testing.B) {
	for _, family := range families {
		a, peer, gw, world := podA.addr(family), podB.addr(family), gateways[family], outside[family]
		toPod := fromStack(gw, a)
		for _, c := range []struct {
			name    string
			program string
			action  uint32
			flow    flow
		}{
			{"pod_egress/to-pod", bpf.PodEgress, actRedirect, sent(podA, a, peer).withTTL(255)},
			{"pod_egress/to-node", bpf.PodEgress, actOK, sent(podA, a, gw)},
			{"pod_egress/to-world", bpf.PodEgress, actOK, sent(podA, a, world)},
			{"pod_egress/spoofed", bpf.PodEgress, actShot, sent(podA, peer, world)},
			{"pod_ingress/of-node", bpf.PodIngress, actOK, toPod},
			{"host_egress/to-pod", bpf.HostEgress, actRedirect, toPod},
		} {
			b.Run(fmt.Sprintf("%s/IPv%d", c.name, family), func(b *testing.B) {
				n := newBenchNode(b)
				measure(b, n.program(c.program), c.action, c.flow.bytes(b))
			})
		}
	}
}

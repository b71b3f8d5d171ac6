package tests

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/testnet"
)

const (
	benchPolicy   = 500 // policy id of both pods
	benchIdentity = 0x2222
)

// benchPolicies and benchAddresses are the maximum numbers of entries in the design. An emulated CPU counts instructions, and a lookup takes as many
// instructions in a smaller map.
var benchPolicies, benchAddresses = scaled(1_000_000), scaled(512_000)

func scaled(entries int) int {
	if testnet.Emulated() {
		return entries / 64
	}
	return entries
}

// newFullNode is a node whose maps of policies and addresses have the maximum numbers of entries, under random keys, and whose pods have a policy that allows
// both pods, the world and one identity by port.
func newFullNode(b *testing.B) *node {
	n := newBenchNode(b)
	random := rand.New(rand.NewPCG(1, 2))
	var policies []bpf.PolicyKey
	for range benchPolicies {
		policies = append(policies,
			bpf.NewPolicyKey(1000+random.Uint32N(1000), bpf.PolicyIdentity, random.Uint32N(1<<16), bpf.PolicyPort, 6, uint16(random.Uint32())))
	}
	for _, identity := range []uint32{podA.facts().Identity, podB.facts().Identity, benchIdentity, 2} {
		for _, protocol := range []uint8{protoTCP, protoUDP} {
			policies = append(policies, bpf.NewPolicyKey(benchPolicy, bpf.PolicyIdentity, identity, bpf.PolicyPort, protocol, 53))
		}
	}
	putAll(b, n.maps[bpf.MapPolicy], policies, bpf.PolicyEntry{})
	var addresses []bpf.AddrKey
	for range benchAddresses {
		var v4 [4]byte
		binary.BigEndian.PutUint32(v4[:], 0x0b000000+random.Uint32N(1<<24))
		addresses = append(addresses, bpf.NewAddrKey(netip.AddrFrom4(v4)))
	}
	putAll(b, n.maps[bpf.MapIpcache], addresses, bpf.IpcacheEntry{Identity: 7})
	for _, family := range families {
		n.update(bpf.MapIpcache, bpf.NewAddrKey(benchKnown[family]), bpf.IpcacheEntry{Identity: benchIdentity})
	}
	return n
}

var benchKnown = map[int]netip.Addr{4: netip.MustParseAddr("10.9.9.9"), 6: netip.MustParseAddr("fd00:9::9")}

// putAll writes a value under keys, in the given order: the order determines which keys a lookup compares first.
func putAll[K comparable, V any](b *testing.B, m *ebpf.Map, keys []K, value V) {
	b.Helper()
	if _, err := m.BatchUpdate(keys, slices.Repeat([]V{value}, len(keys)), nil); err != nil {
		b.Fatal(err)
	}
}

// guarded assigns a policy with entries to both pods.
func guarded(n *node) {
	shape := bpf.ShapeEntry(bpf.PolicyIdentity, bpf.PolicyPort)
	for _, id := range []uint16{podA.id, podB.id} {
		var f bpf.EndpointFacts
		if err := n.maps[bpf.MapEndpointFacts].Lookup(uint32(id), &f); err != nil {
			n.t.Fatal(err)
		}
		f.PolicyIngress, f.ShapeIngress, f.PolicyEgress, f.ShapeEgress = benchPolicy, shape, benchPolicy, shape
		n.update(bpf.MapEndpointFacts, uint32(id), f)
	}
}

// BenchmarkFlow measures the cost of conntrack and policy: packets of an established flow, and first packets of flows that are new to the tables and evict
// older entries from the table of flows without a reply.
func BenchmarkFlow(b *testing.B) {
	for _, family := range families {
		a, peer, known, world := podA.addr(family), podB.addr(family), benchKnown[family], outside[family]
		for _, c := range []struct {
			name   string
			action uint32
			flow   flow
			answer flow
			from   uint32 // the link of the reply
			hook   string
		}{
			{"to-pod", actRedirect, sent(podA, a, peer).withTTL(255), sent(podB, peer, a), ifPodB, bpf.PodEgress},
			{"to-world", actOK, sent(podA, a, world), received(podA, world, a), ifLoopback, bpf.PodIngress},
			{"to-remote", actOK, sent(podA, a, known), received(podA, known, a), ifLoopback, bpf.PodIngress},
		} {
			c.answer.sport, c.answer.dport = 53, 1234
			b.Run(fmt.Sprintf("established/%s/IPv%d", c.name, family), func(b *testing.B) {
				n := newFullNode(b)
				guarded(n)
				if c.hook == bpf.PodEgress {
					c.answer.from, c.answer.to = podA.host, podA.mac // newBenchNode swaps pod b's
				}
				n.run(bpf.PodEgress, ifLoopback, c.flow.bytes(b))
				n.run(c.hook, c.from, c.answer.bytes(b))
				n.run(bpf.PodEgress, ifLoopback, c.flow.bytes(b))
				if flows := n.established(family); flows != 1 {
					b.Fatalf("%d established flows", flows)
				}
				fast := n.program(bpf.PodEgress)
				n.constants = map[string]uint32{bpf.VariableVerdictEvents: 1, bpf.VariableFastPath: 0}
				measureAgainst(b, fast, emptyProgram(b), c.action, c.flow.bytes(b), rival{"of-slow-path", n.loadProgram(bpf.PodEgress), true},
					rival{"ns/packet-kernel", n.kernelPart(b, family, c.action), false})
			})
			b.Run(fmt.Sprintf("new/%s/IPv%d", c.name, family), func(b *testing.B) {
				n := newFullNode(b)
				guarded(n)
				offset := map[int]int16{4: 34, 6: 54}[family]
				measureAgainst(b, nextPort(b, n.program(bpf.PodEgress), offset), nextPort(b, emptyProgram(b), offset), c.action, c.flow.bytes(b))
			})
		}
	}
}

// BenchmarkFlow_OneSided measures packets of flows that are not established, or no longer in both directions: datagrams without a reply, and segments to a
// peer that has closed its direction.
func BenchmarkFlow_OneSided(b *testing.B) {
	for _, family := range families {
		ask := sent(podA, podA.addr(family), podB.addr(family)).withTTL(255).ports(1234, 53)
		answer := sent(podB, podB.addr(family), podA.addr(family))
		answer.from, answer.to = podA.host, podA.mac // newBenchNode swaps pod b's
		answer.sport, answer.dport = 53, 1234
		for name, before := range map[string]struct {
			of     []flow
			flags  []string // "" is a datagram
			packet []byte
		}{
			"one-way-UDP":     {[]flow{ask}, []string{""}, ask.bytes(b)},
			"half-closed-TCP": {[]flow{ask, answer, ask, answer}, []string{"S", "SA", "A", "FA"}, ask.tcp(b, "A")},
		} {
			b.Run(fmt.Sprintf("%s/IPv%d", name, family), func(b *testing.B) {
				n := newFullNode(b)
				guarded(n)
				for i, f := range before.of {
					packet, from := f.bytes(b), uint32(ifLoopback)
					if before.flags[i] != "" {
						packet = f.tcp(b, before.flags[i])
					}
					if f.src == answer.src {
						from = ifPodB
					}
					n.run(bpf.PodEgress, from, packet)
				}
				fast := n.program(bpf.PodEgress)
				n.constants = map[string]uint32{bpf.VariableVerdictEvents: 1, bpf.VariableFastPath: 0}
				measureAgainst(b, fast, emptyProgram(b), actRedirect, before.packet, rival{"of-slow-path", n.loadProgram(bpf.PodEgress), true})
			})
		}
	}
}

// cpuRepeats is the number of packets that a CPU processes in a row: milliseconds, so that the two CPUs work at the same time.
const cpuRepeats = 50_000

// BenchmarkTwoCPUs measures packets of established flows on two CPUs at the same time: of one flow, whose entry the CPUs share, and of one flow for each CPU.
// The ratio is the cost of writing to the shared entry.
func BenchmarkTwoCPUs(b *testing.B) {
	var allowed unix.CPUSet
	if err := unix.SchedGetaffinity(0, &allowed); err != nil {
		b.Fatal(err)
	}
	if allowed.Count() < 2 {
		b.Skip("needs two CPUs")
	}
	for _, family := range families {
		b.Run(fmt.Sprintf("IPv%d", family), func(b *testing.B) {
			n := newFullNode(b)
			guarded(n)
			var packets [2][]byte
			for i := range packets {
				out := sent(podA, podA.addr(family), outside[family]).ports(1234+uint16(i), 53)
				packets[i] = out.bytes(b)
				n.run(bpf.PodEgress, ifLoopback, packets[i])
				n.run(bpf.PodIngress, ifLoopback, received(podA, outside[family], podA.addr(family)).ports(53, 1234+uint16(i)).bytes(b))
				n.run(bpf.PodEgress, ifLoopback, packets[i])
			}
			if flows := n.established(family); flows != len(packets) {
				b.Fatalf("%d established flows", flows)
			}
			var one, each []time.Duration
			for b.Loop() {
				one = append(one, onTwoCPUs(b, n.program(bpf.PodEgress), allowed, [2][]byte{packets[0], packets[0]}))
				each = append(each, onTwoCPUs(b, n.program(bpf.PodEgress), allowed, packets))
			}
			shared, apart := typical(one), typical(each)
			b.ReportMetric(float64(shared.Nanoseconds()), "ns/packet-one-flow")
			b.ReportMetric(float64(apart.Nanoseconds()), "ns/packet-flow-each")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// onTwoCPUs runs a program on two of the allowed CPUs at the same time, each with its packet, and returns the mean time of a packet.
func onTwoCPUs(b *testing.B, program *ebpf.Program, allowed unix.CPUSet, packets [2][]byte) time.Duration {
	b.Helper()
	var took [2]time.Duration
	var failed [2]error
	var ready, done sync.WaitGroup
	ready.Add(len(packets))
	cpu := -1
	for i, packet := range packets {
		for cpu++; !allowed.IsSet(cpu); cpu++ {
		}
		var own unix.CPUSet
		own.Set(cpu)
		done.Go(func() {
			runtime.LockOSThread() // without an unlock, the thread exits with the goroutine, and with it the CPU affinity
			failed[i] = unix.SchedSetaffinity(0, &own)
			ready.Done()
			ready.Wait()
			action, each, err := program.Benchmark(packet, cpuRepeats, nil)
			if took[i] = each; err == nil && action != actOK {
				err = fmt.Errorf("action %d, want %d", int32(action), actOK)
			}
			failed[i] = errors.Join(failed[i], err)
		})
	}
	done.Wait()
	if err := errors.Join(failed[:]...); err != nil {
		b.Fatal(err)
	}
	return (took[0] + took[1]) / 2
}

// kernelPart returns a program with only the kernel's part of the work for a packet of the established flow: the lookups of its entry and of its endpoint,
// and for actRedirect the redirect to the peer. No program that needs these can be faster.
func (n *node) kernelPart(b *testing.B, family int, action uint32) *ebpf.Program {
	b.Helper()
	flows := n.maps[ctEstOf(family)]
	var key []byte
	if err := flows.NextKey(nil, &key); err != nil {
		b.Fatal(err)
	}
	size := (len(key) + 7) &^ 7 // the stack is written in words of 8 bytes
	padded := append(key, make([]byte, size-len(key))...)
	code := asm.Instructions{asm.Mov.Imm(asm.R8, int32(action))}
	for i := 0; i < size; i += 8 {
		code = append(code, asm.LoadImm(asm.R3, int64(binary.NativeEndian.Uint64(padded[i:])), asm.DWord),
			asm.StoreMem(asm.RFP, int16(i-size), asm.R3, asm.DWord))
	}
	lookUp := func(m *ebpf.Map, offset int) {
		code = append(code, asm.LoadMapPtr(asm.R1, m.FD()), asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, int32(offset)),
			asm.FnMapLookupElem.Call(), asm.JEq.Imm(asm.R0, 0, "miss"))
	}
	lookUp(flows, -size)
	code = append(code, asm.StoreImm(asm.RFP, int16(-size-8), int64(podA.id), asm.Word))
	lookUp(n.maps[bpf.MapEndpointFacts], -size-8)
	if action == actRedirect {
		code = append(code, asm.Mov.Imm(asm.R1, int32(ifPodB)), asm.Mov.Imm(asm.R2, 0), asm.FnRedirectPeer.Call(), asm.Mov.Reg(asm.R8, asm.R0))
	}
	code = append(code, asm.Mov.Reg(asm.R0, asm.R8), asm.Return(), asm.Mov.Imm(asm.R0, -2).WithSymbol("miss"), asm.Return())
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: code})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = program.Close() })
	return program
}

func ctEstOf(family int) string { return map[int]string{4: bpf.MapCtEst4, 6: bpf.MapCtEst6}[family] }

// established returns the number of established flows of a family.
func (n *node) established(family int) (count int) {
	var key, value []byte
	all := n.maps[ctEstOf(family)].Iterate()
	for all.Next(&key, &value) {
		count++
	}
	return count
}

// nextPort returns a program that sets a different source port for each packet and continues with program.
func nextPort(b *testing.B, program *ebpf.Program, offset int16) *ebpf.Program {
	b.Helper()
	counter, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = counter.Close() })
	calls, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.ProgramArray, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = calls.Close() })
	if err := calls.Put(uint32(0), uint32(program.FD())); err != nil {
		b.Fatal(err)
	}
	out, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.StoreImm(asm.RFP, -4, 0, asm.Word),
		asm.LoadMapPtr(asm.R1, counter.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -4),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "out"),
		asm.LoadMem(asm.R7, asm.R0, 0, asm.Word),
		asm.Add.Imm(asm.R7, 1),
		asm.StoreMem(asm.R0, 0, asm.R7, asm.Word),
		asm.LoadMem(asm.R2, asm.R6, 76, asm.Word), // data
		asm.LoadMem(asm.R3, asm.R6, 80, asm.Word), // data_end
		asm.Mov.Reg(asm.R4, asm.R2),
		asm.Add.Imm(asm.R4, int32(offset)+2),
		asm.JGT.Reg(asm.R4, asm.R3, "out"),
		asm.StoreMem(asm.R2, offset, asm.R7, asm.Half),
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.LoadMapPtr(asm.R2, calls.FD()),
		asm.Mov.Imm(asm.R3, 0),
		asm.FnTailCall.Call(),
		asm.Mov.Imm(asm.R0, -2).WithSymbol("out"),
		asm.Return(),
	}})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = out.Close() })
	return out
}

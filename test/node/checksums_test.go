package node_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"

	"github.com/waggle-net/waggle/pkg/datapath/tc"
	"github.com/waggle-net/waggle/pkg/podlink"
	"github.com/waggle-net/waggle/pkg/tables/nodeslots"
	"github.com/waggle-net/waggle/pkg/tables/pathtests"
	"github.com/waggle-net/waggle/test/nodekit"
)

// Offsets of checksums in headers.
const (
	tcpChecksumAt = 16
	udpChecksumAt = 6
)

// outerHeaders describes the headers of a tunnel frame: the EtherType, and the offsets of the protocol, of the destination port and of the inner IP header.
type outerHeaders struct{ etherType, protocolAt, portAt, innerIPAt int32 }

var (
	outerIPv4 = outerHeaders{etherType: 0x0800, protocolAt: 23, portAt: 36, innerIPAt: 64}
	outerIPv6 = outerHeaders{etherType: 0x86dd, protocolAt: 20, portAt: 56, innerIPAt: 84}
)

// spoiler returns the program of a faulty device, which completes wrong inner checksums of tunnel packets: it changes the partial sum (addresses, protocol and
// length) that the kernel has put into the checksum field. Packets with a complete checksum pass unchanged.
func spoiler(frame outerHeaders) (*ebpf.Program, error) {
	innerIPAt := frame.innerIPAt
	const (
		sums  = -48 // 40 bytes: addresses, length, protocol
		field = -2
	)
	load := func(at asm.Instruction, stack int32, size int32) asm.Instructions {
		return asm.Instructions{asm.Mov.Reg(asm.R1, asm.R6), at, asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Imm(asm.R3, stack), asm.Mov.Imm(asm.R4, size),
			asm.FnSkbLoadBytes.Call(), asm.JNE.Imm(asm.R0, 0, "out")}
	}
	read := func(at, size int32, to asm.Register) asm.Instructions { // in host byte order
		width, swap := asm.Half, asm.HostTo(asm.BE, to, asm.Half)
		if size == 1 {
			width, swap = asm.Byte, asm.Mov.Reg(to, to)
		}
		return append(load(asm.Mov.Imm(asm.R2, at), field, size), asm.LoadMem(to, asm.RFP, field, width), swap)
	}
	code := asm.Instructions{asm.Mov.Reg(asm.R6, asm.R1), asm.Mov.Imm(asm.R7, 0)}
	for at := int16(sums); at < sums+40; at += 8 {
		code = append(code, asm.StoreMem(asm.RFP, at, asm.R7, asm.DWord))
	}
	code = append(code, read(12, 2, asm.R7)...)
	code = append(code, asm.JNE.Imm(asm.R7, frame.etherType, "out"))
	code = append(code, read(frame.protocolAt, 1, asm.R7)...)
	code = append(code, asm.JNE.Imm(asm.R7, 17, "out"))
	code = append(code, read(frame.portAt, 2, asm.R7)...)
	code = append(code, asm.JNE.Imm(asm.R7, 8472, "out"))
	code = append(code, read(innerIPAt-2, 2, asm.R7)...)
	code = append(code, asm.JEq.Imm(asm.R7, 0x86dd, "ipv6"), asm.JNE.Imm(asm.R7, 0x0800, "out"))
	code = append(code, load(asm.Mov.Imm(asm.R2, innerIPAt+12), sums, 8)...)
	code = append(code, read(innerIPAt+9, 1, asm.R8)...)
	code = append(code, read(innerIPAt+2, 2, asm.R7)...)
	code = append(code, asm.Sub.Imm(asm.R7, 20), asm.Mov.Imm(asm.R9, innerIPAt+20), asm.Ja.Label("sum"))
	ipv6 := load(asm.Mov.Imm(asm.R2, innerIPAt+8), sums, 32)
	ipv6[0] = ipv6[0].WithSymbol("ipv6")
	code = append(code, ipv6...)
	code = append(code, read(innerIPAt+6, 1, asm.R8)...)
	code = append(code, read(innerIPAt+4, 2, asm.R7)...)
	code = append(code, asm.Mov.Imm(asm.R9, innerIPAt+40),
		asm.HostTo(asm.BE, asm.R7, asm.Half).WithSymbol("sum"),
		asm.StoreMem(asm.RFP, sums+34, asm.R7, asm.Half),
		asm.StoreMem(asm.RFP, sums+39, asm.R8, asm.Byte),
		asm.JEq.Imm(asm.R8, 6, "tcp"),
		asm.JNE.Imm(asm.R8, 17, "out"),
		asm.Add.Imm(asm.R9, udpChecksumAt),
		asm.Ja.Label("fold"),
		asm.Add.Imm(asm.R9, tcpChecksumAt).WithSymbol("tcp"),
		asm.Mov.Imm(asm.R1, 0).WithSymbol("fold"),
		asm.Mov.Imm(asm.R2, 0),
		asm.Mov.Reg(asm.R3, asm.RFP),
		asm.Add.Imm(asm.R3, sums),
		asm.Mov.Imm(asm.R4, 40),
		asm.Mov.Imm(asm.R5, 0),
		asm.FnCsumDiff.Call(),
		asm.Mov.Reg32(asm.R7, asm.R0))
	for range 2 {
		code = append(code, asm.Mov.Reg(asm.R1, asm.R7), asm.RSh.Imm(asm.R1, 16), asm.And.Imm(asm.R7, 0xffff), asm.Add.Reg(asm.R7, asm.R1))
	}
	code = append(code, load(asm.Mov.Reg(asm.R2, asm.R9), field, 2)...)
	code = append(code, asm.LoadMem(asm.R1, asm.RFP, field, asm.Half),
		asm.JNE.Reg(asm.R1, asm.R7, "out"),
		asm.Xor.Imm(asm.R1, 0xff),
		asm.StoreMem(asm.RFP, field, asm.R1, asm.Half),
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.Mov.Reg(asm.R2, asm.R9),
		asm.Mov.Reg(asm.R3, asm.RFP),
		asm.Add.Imm(asm.R3, field),
		asm.Mov.Imm(asm.R4, 2),
		asm.Mov.Imm(asm.R5, 0),
		asm.FnSkbStoreBytes.Call(),
		asm.Mov.Imm(asm.R0, 0).WithSymbol("out"),
		asm.Return())
	return ebpf.NewProgram(&ebpf.ProgramSpec{Name: "spoiler", Type: ebpf.SchedCLS, License: "GPL", Instructions: code})
}

// spoilChecksums makes the devices between a node and the other nodes complete wrong checksums of packets inside the tunnel, in both directions, until end is
// called.
func spoilChecksums(t *testing.T, c *nodekit.Cluster, n *nodekit.Node, frame outerHeaders) (end func()) {
	t.Helper()
	program, err := spoiler(frame)
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	onPort := func(f func(handle *tc.Handle, port int) error) {
		t.Helper()
		if err := n.Outside(func() error {
			handle, err := tc.Open()
			if err != nil {
				return err
			}
			defer handle.Close()
			return linkNamed(n.Name(), func(l netlink.Link) error { return f(handle, l.Attrs().Index) })
		}); err != nil {
			t.Fatal(err)
		}
	}
	bridgeCompletes(t, c)
	onPort(func(handle *tc.Handle, port int) error {
		return errors.Join(handle.EnsureClsact(port, tc.Blocks{}), handle.ReplaceFilter(tc.Ingress(port), "spoiler", program.FD()),
			handle.ReplaceFilter(tc.Egress(port), "spoiler", program.FD()))
	})
	return func() {
		t.Helper()
		onPort(func(handle *tc.Handle, port int) error { return handle.DeleteClsact(port) })
	}
}

// bridgeCompletes makes the ports of the bridge between nodes complete the checksums and segment the aggregates that the nodes leave to the underlay.
func bridgeCompletes(t *testing.T, c *nodekit.Cluster) {
	t.Helper()
	for _, n := range c.Nodes {
		if err := n.Outside(func() error { return withoutChecksums(n.Name()) }); err != nil {
			t.Fatal(err)
		}
	}
}

// completedBy waits until a node completes the checksums of packets to exactly these nodes.
func completedBy(t *testing.T, n *nodekit.Node, nodes ...string) {
	t.Helper()
	eventually(t, func() error {
		var rows []*nodeslots.Slot
		text, err := n.Waggle(t.Context(), "db", "show", "node-slots", "-o", "json")
		if err == nil {
			err = json.Unmarshal([]byte(text), &rows)
		}
		var have []string
		for _, row := range rows {
			if row.Checksums != 0 {
				have = append(have, row.Node)
			}
		}
		if fmt.Sprint(have) != fmt.Sprint(nodes) {
			err = errors.Join(err, fmt.Errorf("%s completes the checksums of packets to %v, want %v:\n%s", n.Name(), have, nodes, text))
		}
		return err
	})
	eventually(t, func() error {
		return n.Do(func() error {
			_, err := netlink.LinkByName(podlink.ChecksumDevice)
			if len(nodes) == 0 && errors.As(err, new(netlink.LinkNotFoundError)) {
				return nil
			}
			if len(nodes) == 0 && err == nil {
				err = errors.New("it is there")
			}
			if err != nil {
				return fmt.Errorf("%s: device %s: %w", n.Name(), podlink.ChecksumDevice, err)
			}
			return nil
		})
	})
}

// requireCorruptionFound waits until the tests of all paths from and to a node have found corrupt checksums.
func requireCorruptionFound(t *testing.T, c *nodekit.Cluster, behind *nodekit.Node) {
	t.Helper()
	for _, happens := range []func(*pathtests.Test) bool{ // each within its time limit
		func(row *pathtests.Test) bool { return row.Strikes > 0 || row.Fault != "" },
		func(row *pathtests.Test) bool { return row.Fault == pathtests.Corrupted },
	} {
		for _, n := range c.Nodes {
			eventually(t, func() error {
				rows, text, err := testsOf(t, n)
				for _, row := range rows {
					if (row.Node == behind.Name() || n == behind) && row.Kind == pathtests.Checksum && !happens(row) {
						err = errors.Join(err, fmt.Errorf("%s: checksums to %s are not spoilt yet:\n%s", n.Name(), row.Node, text))
					}
				}
				return err
			})
		}
	}
}

// transfers sends a stream and a datagram of each family to a pod and back.
func transfers(from nodekit.NetNS, pod *nodekit.Pod) (err error) {
	for _, family := range families {
		err = errors.Join(err, nodekit.TCP(from, pod, pod.Addr(family.ipv6), 1<<20), nodekit.UDP(from, pod, pod.Addr(family.ipv6), 1000))
	}
	return err
}

// Devices between one of three nodes and the others spoil the inner checksums that they complete. Each node heals the path by itself, and other paths stay
// unchanged, also while an agent is dead and after its restart.
func TestPrivilegedPathTest_CorruptChecksumsAreRepaired(t *testing.T) {
	t.Parallel()
	c, all := newKubeCluster(t, 3, "--routing-mode=tunnel", "--prometheus-serve-addr", metricsAddress)
	one, two, three := all[0].Node, all[1].Node, all[2].Node
	end := spoilChecksums(t, c, three, outerIPv4)
	startAgents(t, c)
	requireCorruptionFound(t, c, three)
	pathsOf(t, one, map[string]string{"node-2": "ok", "node-3": "healed"})
	pathsOf(t, two, map[string]string{"node-1": "ok", "node-3": "healed"})
	pathsOf(t, three, map[string]string{"node-1": "healed", "node-2": "healed"})
	completedBy(t, one, "node-3")
	completedBy(t, three, "node-1", "node-2")
	shows(t, one, "status", "1/2 passed, 1 healed", "the path to node node-3 is healed by checksums that the kernel computes")
	shows(t, one, "node list", "healed")
	eventually(t, func() error {
		samples, err := scrape(one)
		if name := `waggle_path_tests{result="healed",test="checksum"}`; err == nil && samples[name] != 1 {
			err = fmt.Errorf("%s is %v, want 1", name, samples[name])
		}
		return err
	})

	pods := map[*nodekit.Node]*nodekit.Pod{}
	for i, n := range c.Nodes {
		pods[n] = all[i].startPod(t, "pod", map[string]string{"app": "pod"})
	}
	all3 := func() {
		t.Helper()
		for from, client := range pods {
			for to, server := range pods {
				if err := errors.Join(transfers(client, server), transfers(from.Host(), server)); err != nil {
					t.Errorf("from %s to %s: %v", from.Name(), to.Name(), err)
				}
			}
		}
	}
	all3()

	// Between the end of an agent and the path test of its successor, packets use the same path as before.
	var traffic sync.WaitGroup
	done := make(chan struct{})
	traffic.Go(func() {
		for count := 0; ; count++ {
			select {
			case <-done:
				if count == 0 {
					t.Error("nothing was sent")
				}
				return
			default:
			}
			if err := errors.Join(transfers(pods[one], pods[three]), transfers(pods[three], pods[one])); err != nil {
				t.Error(err)
				return
			}
		}
	})
	err := errors.Join(one.KillAgent(t.Context()), one.StartAgent())
	if err == nil {
		began := time.Now()
		pathsOf(t, one, map[string]string{"node-2": "ok", "node-3": "healed"})
		t.Logf("healed again after %v", time.Since(began))
	}
	close(done)
	traffic.Wait()
	if err != nil {
		t.Fatal(err)
	}

	// After the fault ends, each node detects that by itself and no longer completes checksums for any node.
	end()
	for _, n := range c.Nodes {
		want := map[string]string{"node-1": "ok", "node-2": "ok", "node-3": "ok"}
		delete(want, n.Name())
		pathsOf(t, n, want)
		completedBy(t, n)
	}
	all3()
}

// The same fault with an IPv6 underlay. Its packets have an outer checksum too, which covers the inner one: the receiver drops single packets with a corrupt
// inner checksum before it removes the outer headers. Both nodes heal the path. Receivers verify both checksums of the healed packets, because the bridge
// completes the checksums that nodes leave to the underlay.
func TestPrivilegedPathTest_CorruptChecksumsOverIPv6AreRepaired(t *testing.T) {
	t.Parallel()
	c, all := newKubeCluster(t, 2, "--routing-mode=tunnel", "--underlay-protocol=ipv6")
	one, two := all[0].Node, all[1].Node
	end := spoilChecksums(t, c, two, outerIPv6)
	startAgents(t, c)
	requireCorruptionFound(t, c, two)
	pathsOf(t, one, map[string]string{"node-2": "healed"})
	pathsOf(t, two, map[string]string{"node-1": "healed"})
	completedBy(t, one, "node-2")
	completedBy(t, two, "node-1")
	pods := map[*nodekit.Node]*nodekit.Pod{}
	for _, n := range all {
		pods[n.Node] = n.startPod(t, "pod-"+n.Name(), map[string]string{"app": "pod"})
	}
	bothWays := func() {
		t.Helper()
		if err := errors.Join(transfers(pods[one], pods[two]), transfers(pods[two], pods[one]), transfers(one.Host(), pods[two]), transfers(two.Host(), pods[one])); err != nil {
			t.Error(err)
		}
	}
	bothWays()
	end()
	pathsOf(t, one, map[string]string{"node-2": "ok"})
	pathsOf(t, two, map[string]string{"node-1": "ok"})
	completedBy(t, one)
	completedBy(t, two)
	bothWays()
}

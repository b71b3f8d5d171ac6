package node_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/datapath/nftguard"
	"github.com/waggle-net/waggle/pkg/datapath/tc"
	"github.com/waggle-net/waggle/pkg/podlink"
	"github.com/waggle-net/waggle/test/nodekit"
)

// A link whose clsact is deleted passes nothing to the node. A running agent restores the clsact.
func TestPrivilegedGuard_LinkWithoutItsClsactPassesNothing(t *testing.T) {
	t.Parallel()
	node := startNode(t, nodekit.Options{})
	a, b := addPod(t, node, "a"), addPod(t, node, "b")
	from := endsOf(t, a)
	ifindex := int(ifindexOf(t, node, from.host))
	const packets = 20
	received := map[bool]<-chan netip.Addr{false: listenAtGateway(t, node, from.gw4), true: listenAtGateway(t, node, from.gw6)}

	// Without an agent, the clsact is not restored.
	if err := node.StopAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := node.Do(func() error { return deleteClsact(ifindex) }); err != nil {
		t.Fatal(err)
	}
	dropped := guardCount(t, node)
	for _, family := range families {
		src, dst := from.ipv4, from.gw4
		if family.ipv6 {
			src, dst = from.ipv6, from.gw6
		}
		for range packets {
			for _, target := range []netip.Addr{dst, b.Addr(family.ipv6), outsideAddr(family.ipv6)} {
				if err := nodekit.SendFrame(a, "eth0", udp(t, from.pod, from.peer, src, target, 64)); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	eventually(t, func() error { // the kernel handles them when it has a CPU
		if got := guardCount(t, node) - dropped; got < 6*packets {
			return fmt.Errorf("the rule dropped %d packets, want %d", got, 6*packets)
		}
		return nil
	})
	time.Sleep(100 * time.Millisecond) // for packets that passed, if the rule has counted others as well
	for ipv6, c := range received {
		if n := len(c); n > 0 {
			t.Errorf("%d packets passed (IPv6: %v)", n, ipv6)
		}
	}

	if err := node.StartAgent(); err != nil {
		t.Fatal(err)
	}
	waitReady(t, node)
	eventually(t, func() error { return hasClsact(node, ifindex) })
	pingBoth(t, a, b)
	if err := errors.Join(nodekit.Ping(a, from.gw4, 56), nodekit.Ping(a, from.gw6, 56)); err != nil {
		t.Error(err)
	}

	// A running agent restores it, because the kernel announces the deletion.
	if err := node.Do(func() error { return deleteClsact(ifindex) }); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error { return hasClsact(node, ifindex) })
}

func listenAtGateway(t *testing.T, node *nodekit.Node, addr netip.Addr) <-chan netip.Addr {
	t.Helper()
	return nodekit.Listen(t, node.Host(), addr, 2222)
}

func deleteClsact(ifindex int) error {
	handle, err := tc.Open()
	if err != nil {
		return err
	}
	defer handle.Close()
	return handle.DeleteClsact(ifindex)
}

func hasClsact(node *nodekit.Node, ifindex int) error {
	return node.Do(func() error {
		handle, err := tc.Open()
		if err != nil {
			return err
		}
		defer handle.Close()
		blocks, found, err := handle.Clsact(ifindex)
		want := tc.Blocks{Ingress: podlink.IngressBlock, Egress: podlink.EgressBlock}
		if err == nil && (!found || blocks != want) {
			err = fmt.Errorf("the link has the blocks %+v", blocks)
		}
		return err
	})
}

// guardRule is the rule of an agent with default flags.
var guardRule = nftguard.Rule{Groups: []uint32{podlink.Group, podlink.DeletedGroup, podlink.OverlayGroup}, Mark: podlink.MarkMagic, Mask: podlink.MarkMask, AnyMarked: true,
	NodeDevice: podlink.NetDevice, PodDevice: podlink.HostDevice}

func guardCount(t *testing.T, node *nodekit.Node) uint64 {
	t.Helper()
	var state nftguard.State
	if err := node.Do(func() (err error) {
		state, err = nftguard.Read(guardRule)
		return err
	}); err != nil || !state.Installed {
		t.Fatalf("the rule: %+v, %v", state, err)
	}
	return state.Unmarked.Packets
}

// Foreign routes, nftables rules and programs stay, in the same order, while pods are attached and the agent restarts.
func TestPrivilegedForeign_StateIsUnchanged(t *testing.T) {
	t.Parallel()
	node := startNode(t, nodekit.Options{})
	program := foreignProgram(t)
	if err := node.Do(func() error {
		return errors.Join(foreignRoute(), foreignTable(), attachForeign(t, program))
	}); err != nil {
		t.Fatal(err)
	}
	before := foreignState(t, node)
	if len(before) < 4 { // a route, a chain, the foreign filter and Waggle's program; with tcx, the foreign tcx program as well
		t.Fatalf("the foreign state is %q", before)
	}
	a := addPod(t, node, "a")
	for range 2 {
		if err := nodekit.Ping(node.Host(), a.Addr(false), 56); err != nil {
			t.Error(err)
		}
		if after := foreignState(t, node); !slices.Equal(before, after) {
			t.Errorf("before: %q\nafter: %q", before, after)
		}
		if err := errors.Join(node.StopAgent(t.Context()), node.StartAgent()); err != nil {
			t.Fatal(err)
		}
		waitReady(t, node)
	}
}

var (
	foreignNet   = netip.MustParsePrefix("198.51.100.0/24")
	foreignNames = "foreign"
)

func foreignRoute() error {
	eth0, err := netlink.LinkByName("eth0")
	if err != nil {
		return err
	}
	_, dst, err := net.ParseCIDR(foreignNet.String())
	if err != nil {
		return err
	}
	return netlink.RouteAdd(&netlink.Route{LinkIndex: eth0.Attrs().Index, Dst: dst, Gw: nodekit.OutsideIPv4.Addr().AsSlice(), Protocol: 4})
}

func foreignTable() error {
	conn, err := nftables.New()
	if err != nil {
		return err
	}
	table := conn.AddTable(&nftables.Table{Name: foreignNames, Family: nftables.TableFamilyINet})
	conn.AddChain(&nftables.Chain{Name: "input", Table: table, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookInput,
		Priority: nftables.ChainPriorityFilter})
	return conn.Flush()
}

func foreignProgram(t *testing.T) *ebpf.Program {
	t.Helper()
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: foreignNames, Type: ebpf.SchedCLS, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = program.Close() })
	return program
}

// attachForeign attaches a program to the hook of Waggle's program, with tc and, from Linux 6.6 on, with tcx. Before Linux 6.6, Waggle's program is a filter as
// well.
func attachForeign(t *testing.T, program *ebpf.Program) error {
	host, err := netlink.LinkByName(podlink.HostDevice)
	if err != nil {
		return err
	}
	attached, err := link.AttachTCX(link.TCXOptions{Interface: host.Attrs().Index, Program: program, Attach: ebpf.AttachTCXEgress})
	if err == nil {
		t.Cleanup(func() { _ = attached.Close() })
	} else if !errors.Is(err, link.ErrNotSupported) {
		return err
	}
	qdisc := &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: host.Attrs().Index,
		Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}}
	if err := netlink.QdiscAdd(qdisc); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return netlink.FilterAdd(&netlink.BpfFilter{FilterAttrs: netlink.FilterAttrs{LinkIndex: host.Attrs().Index,
		Parent: netlink.HANDLE_MIN_EGRESS, Handle: 7, Protocol: unix.ETH_P_ALL, Priority: 77},
		Fd: program.FD(), Name: foreignNames, DirectAction: true})
}

func foreignState(t *testing.T, node *nodekit.Node) (lines []string) {
	t.Helper()
	if err := node.Do(func() error {
		routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Protocol: 4}, netlink.RT_FILTER_PROTOCOL)
		for _, r := range routes {
			lines = append(lines, r.String())
		}
		conn, err2 := nftables.New()
		if err := errors.Join(err, err2); err != nil {
			return err
		}
		chains, err := conn.ListChains()
		for _, c := range chains {
			if c.Table.Name == foreignNames {
				lines = append(lines, "chain "+c.Name)
			}
		}
		host, err2 := netlink.LinkByName(podlink.HostDevice)
		if err := errors.Join(err, err2); err != nil {
			return err
		}
		filters, err := netlink.FilterList(host, netlink.HANDLE_MIN_EGRESS)
		for _, f := range filters {
			lines = append(lines, fmt.Sprintf("filter %d %s", f.Attrs().Priority, f.(*netlink.BpfFilter).Name))
		}
		programs, err2 := link.QueryPrograms(link.QueryOptions{Target: host.Attrs().Index, Attach: ebpf.AttachTCXEgress})
		if errors.Is(err2, unix.EINVAL) { // before Linux 6.6
			programs, err2 = &link.QueryResult{}, nil
		}
		if err := errors.Join(err, err2); err != nil {
			return err
		}
		for _, p := range programs.Programs {
			loaded, err := ebpf.NewProgramFromID(p.ID)
			if err != nil {
				return err
			}
			info, err := loaded.Info()
			if err := errors.Join(err, loaded.Close()); err != nil {
				return err
			}
			lines = append(lines, "tcx "+info.Name)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return lines
}

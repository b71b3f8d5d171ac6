package loader

import (
	"errors"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/tc"
	"github.com/waggle-net/waggle/pkg/podlink"
)

// passing returns a foreign program that leaves every packet to the next program.
func passing(t *testing.T) *ebpf.Program {
	t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "foreign", Type: ebpf.SchedCLS, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

func idOf(t *testing.T, p *ebpf.Program) ebpf.ProgramID {
	t.Helper()
	info, err := p.Info()
	if err != nil {
		t.Fatal(err)
	}
	id, _ := info.ID()
	return id
}

// A foreign program that is attached ahead of Waggle's on waggle_host stays attached, but behind Waggle's, which is attached at all times.
func TestPrivilegedDeviceLink_MovedFirst_ForeignStays(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	links := n.kernel.Devices.(*tcxLinks)
	if supported, err := links.probe(); err != nil || !supported {
		t.Skipf("needs tcx, which came with Linux 6.6; the probe's error: %v", err)
	}
	before, behind := passing(t), passing(t)
	n.host.Do(func() {
		n.mountBPF()
		const key = "waggle_host_egress"
		programs, err := n.kernel.Programs.Load()
		n.check(err)
		p := programs[bpf.HostEgress]
		theirs := func(foreign *ebpf.Program, anchor link.Anchor) link.Link {
			l, err := link.AttachTCX(link.TCXOptions{Interface: n.hostIndex, Program: foreign, Attach: ebpf.AttachTCXEgress, Anchor: anchor})
			n.check(err)
			return l
		}
		order := func() (ids []ebpf.ProgramID) {
			all, err := link.QueryPrograms(link.QueryOptions{Target: n.hostIndex, Attach: ebpf.AttachTCXEgress})
			n.check(err)
			for _, p := range all.Programs {
				ids = append(ids, p.ID)
			}
			return ids
		}
		expect := func(when string, want ...ebpf.ProgramID) {
			t.Helper()
			if have := order(); !slices.Equal(have, want) {
				t.Errorf("%s the programs are %v, want %v", when, have, want)
			}
		}
		ours, first, last := ebpf.ProgramID(p.ID), idOf(t, before), idOf(t, behind)

		// A foreign program was attached first.
		b := theirs(behind, nil)
		defer b.Close()
		n.check(links.Attach(key, onHost(n), &p))
		expect("attached", ours, last)

		// A foreign program is attached ahead of Waggle's, twice.
		for range 2 {
			a := theirs(before, link.Head())
			have, err := links.Attached()
			n.check(err)
			if len(have[key].Ahead) != 1 {
				t.Errorf("ahead of ours: %v, want one", have[key].Ahead)
			}
			n.check(links.Attach(key, onHost(n), nil)) // without a program of this run nothing is moved
			expect("with nothing to move", first, ours, last)
			n.check(links.Attach(key, onHost(n), &p))
			expect("put first again", ours, first, last)
			if have, err := links.Attached(); err != nil || len(have) != 1 || len(have[key].Ahead) != 0 {
				t.Errorf("afterwards: %+v, %v", have, err)
			}
			n.check(a.Close())
		}
		expect("alone with the first", ours, last)

		// Waggle's link is detached by force; the pin stays.
		l, err := link.LoadPinnedLink(filepath.Join(links.dir, key), nil)
		n.check(err)
		n.check(l.Detach())
		n.check(l.Close())
		if have, err := links.Attached(); err != nil || have[key].IfIndex != 0 {
			t.Errorf("detached: %+v, %v", have, err)
		}
		n.check(links.Attach(key, onHost(n), &p))
		expect("attached again", ours, last)
	})
}

// A foreign filter in Waggle's blocks, and a foreign tcx program on a pod's link, process packets before Waggle's programs.
func TestPrivilegedObserve_NamesForeignProgramsAhead(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	foreign := passing(t)
	n.host.Do(func() {
		n.attach()
		if o, err := n.kernel.Pods.Observe(); err != nil || len(o.Ahead) != 0 {
			t.Errorf("ahead in the blocks: %v, %v", o.Ahead, err)
		}
		if ahead, err := n.kernel.Devices.Ahead(n.link); err != nil || len(ahead) != 0 {
			t.Errorf("ahead on the link: %v, %v", ahead, err)
		}
		// The kernel puts a filter with the priority of Waggle's and another handle in front of Waggle's.
		filter := &netlink.BpfFilter{FilterAttrs: netlink.FilterAttrs{LinkIndex: -1, Parent: podlink.IngressBlock, Handle: 9,
			Protocol: unix.ETH_P_ALL, Priority: 1}, Fd: foreign.FD(), Name: "foreign", DirectAction: true}
		n.check(netlink.FilterAdd(filter))
		if o, err := n.kernel.Pods.Observe(); err != nil || len(o.Ahead) != 1 || o.Filters[podlink.IngressBlock] == 0 {
			t.Errorf("ahead in the blocks: %v (ours: %v), %v", o.Ahead, o.Filters, err)
		}
		l, err := link.AttachTCX(link.TCXOptions{Interface: n.link, Program: foreign, Attach: ebpf.AttachTCXIngress})
		if errors.Is(err, link.ErrNotSupported) {
			return // no tcx before Linux 6.6
		}
		n.check(err)
		defer l.Close()
		if ahead, err := n.kernel.Devices.Ahead(n.link); err != nil || len(ahead) != 1 {
			t.Errorf("ahead on the link: %v, %v", ahead, err)
		}
	})
}

// Join restores a changed name, MTU and state of a pod's link; a link with the name of another pod's link is not treated as renamed.
func TestPrivilegedJoin_RestoresNameAndMTU(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.host.Do(func() {
		n.attach()
		l, err := netlink.LinkByIndex(n.link)
		n.check(err)
		n.check(netlink.LinkSetDown(l))
		n.check(netlink.LinkSetName(l, "mine"))
		n.check(netlink.LinkSetMTU(l, 1280))
		n.check(netlink.LinkSetGroup(l, int(podlink.Group)))
		n.check(n.kernel.Pods.Join(n.link, podName, 1500))
		if l, err = netlink.LinkByIndex(n.link); err != nil || l.Attrs().Name != podName || l.Attrs().MTU != 1500 ||
			l.Attrs().RawFlags&unix.IFF_UP == 0 || l.Attrs().Group != podlink.Group {
			t.Errorf("the link is %+v, %v", l.Attrs(), err)
		}
		// The same while the link is up.
		n.check(n.kernel.Pods.Join(n.link, podName, 0))
		if err := netlink.LinkSetName(l, "mine"); err == nil { // Linux 6.3 and newer
			n.check(n.kernel.Pods.Join(n.link, podName, 0))
		}
		if clsacts, err := n.kernel.Pods.Observe(); err != nil || clsacts.Blocks[n.link] != (tc.Blocks{Ingress: podlink.IngressBlock, Egress: podlink.EgressBlock}) {
			t.Errorf("blocks %+v, %v", clsacts.Blocks, err)
		}
	})
}

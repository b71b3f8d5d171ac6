package loader

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/tc"
)

// hooksOf returns the hooks of a device that leads out, by program.
func hooksOf(ifindex int) map[string]attachPoint {
	return map[string]attachPoint{
		bpf.NetdevIngress: {IfIndex: ifindex, Hook: ingress, Shared: true}, bpf.NetdevEgress: {IfIndex: ifindex, Hook: egress, Shared: true},
	}
}

// Both hooks of a device whose name is not valid for a pin; foreign programs stay ahead of Waggle's.
func TestPrivilegedNetdev_BothHooksBesideOthers(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	links := n.kernel.Devices.(*tcxLinks)
	if supported, err := links.probe(); err != nil || !supported {
		t.Skipf("needs tcx, which came with Linux 6.6; the probe's error: %v", err)
	}
	foreign := passing(t)
	n.host.Do(func() {
		n.mountBPF()
		index := n.veth("uplink.100", "outside")
		for range 2 { // attached, then reused by a later run
			programs, err := n.kernel.Programs.Load()
			n.check(err)
			for name, at := range hooksOf(index) {
				p := programs[name]
				key := pinOf("uplink.100", at.Hook)
				n.check(links.Attach(key, at, &p))
				theirs, err := link.AttachTCX(link.TCXOptions{Interface: index, Program: foreign, Attach: at.attachType(), Anchor: link.Head()})
				n.check(err)
				n.check(links.Attach(key, at, &p))
				all, err := link.QueryPrograms(link.QueryOptions{Target: index, Attach: at.attachType()})
				n.check(err)
				if len(all.Programs) != 2 || all.Programs[1].ID != ebpf.ProgramID(p.ID) {
					t.Errorf("%s: %+v, want theirs and then program %d", key, all.Programs, p.ID)
				}
				n.check(theirs.Close())
				have, err := links.Attached()
				if err != nil || have[key].Program != p.ID || have[key].IfIndex != index {
					t.Errorf("%s: %+v, %v; want program %d", key, have[key], err, p.ID)
				}
			}
		}
		for _, at := range hooksOf(index) {
			n.check(links.Detach(pinOf("uplink.100", at.Hook)))
		}
		if have, err := links.Attached(); err != nil || len(have) != 0 {
			t.Errorf("after Detach: %v, error %v", have, err)
		}
	})
}

// Without tcx, a foreign filter with the priority and handle of Waggle's is not replaced, and a later run finds the filters of a previous run.
func TestPrivilegedNetdev_FiltersInPlaceOfTCX(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	links := n.kernel.Devices.(*tcxLinks)
	foreign := passing(t)
	n.host.Do(func() {
		index := n.veth("uplink", "outside")
		programs, err := n.kernel.Programs.Load()
		n.check(err)
		for name, at := range hooksOf(index) {
			p := programs[name]
			n.check(links.traffic.tc.EnsureClsact(index, tc.Blocks{}))
			n.check(links.traffic.tc.ReplaceFilter(at.filter(), "foreign", foreign.FD()))
			if err := links.attachFilter(pinOf("uplink", at.Hook), at, &p); err == nil {
				t.Errorf("%s: a filter of others was replaced", at.Hook)
			}
			n.check(links.traffic.tc.DeleteFilter(at.filter()))
			n.check(links.attachFilter(pinOf("uplink", at.Hook), at, &p))
		}
		later := newTCXLinks(links.traffic, links.dir, nil)
		n.check(later.restore())
		for name, at := range hooksOf(index) {
			have := map[string]attached{}
			n.check(later.addFilters(have))
			if key := pinOf("uplink", at.Hook); have[key].Program != programs[name].ID {
				t.Errorf("%s: found %+v, want program %d", key, have, programs[name].ID)
			} else {
				n.check(later.Detach(key))
			}
		}
		have := map[string]attached{}
		if n.check(later.addFilters(have)); len(have) != 0 {
			t.Errorf("after Detach: %v", have)
		}
	})
}

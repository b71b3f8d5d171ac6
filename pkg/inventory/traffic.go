package inventory

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/tc"
	"github.com/waggle-net/waggle/pkg/podlink"
)

// clsacts finds the queueing disciplines on links of Waggle, and through them the shared blocks. They are removed with their links: removing them alone
// would leave a link whose packets are not evaluated.
func (m *Machine) clsacts() (found []Object, err error) {
	links, err := m.ours()
	if err != nil {
		return nil, err
	}
	all, err := m.traffic.Clsacts()
	for _, index := range slices.Sorted(maps.Keys(all)) {
		l, ours := links[index]
		if !ours {
			continue
		}
		o := Object{Name: "clsact of " + l.Attrs().Name, Owner: "cell loader", Proof: "on a link of Waggle", Note: "removed with its link"}
		if b := all[index]; b != (tc.Blocks{}) {
			o.Note = fmt.Sprintf("blocks %#x and %#x; removed with its link", b.Ingress, b.Egress)
		}
		found = append(found, o)
	}
	return found, err
}

// filters finds the programs in the shared blocks. The last device of a block removes the block with its filters. A filter that remains without links
// of Waggle is in a block that a foreign device has joined. It also finds filters on devices that lead out of the node.
func (m *Machine) filters() (found []Object, err error) {
	var errs []error
	for _, block := range []uint32{podlink.IngressBlock, podlink.EgressBlock} {
		at := tc.Block(block)
		filters, err := m.traffic.Filters(at)
		errs = append(errs, err)
		for _, f := range filters {
			if !f.Ours() {
				continue
			}
			found = append(found, Object{Name: f.Name + " of " + at.String(), Owner: "cell loader",
				Proof: "number of the block, priority and handle", Note: "removed with the last link of the block",
				remove: func() error { return m.traffic.DeleteFilter(at) }})
		}
	}
	others, err := m.netdevFilters()
	return append(found, others...), errors.Join(append(errs, err)...)
}

// netdevPrograms are the programs on devices that lead out of the node.
var netdevPrograms = []string{bpf.NetdevIngress, bpf.NetdevEgress, bpf.L3DevIngress, bpf.L3DevEgress}

// netdevFilters finds the programs on foreign devices that lead out of the node, if the kernel has no tcx. The clsact stays, because it may have
// existed before and an empty one has no effect.
func (m *Machine) netdevFilters() (found []Object, err error) {
	all, err := m.traffic.Clsacts()
	errs := []error{err}
	for _, index := range slices.Sorted(maps.Keys(all)) {
		if all[index] != (tc.Blocks{}) {
			continue
		}
		for _, at := range []tc.AttachPoint{tc.Ingress(index), tc.Egress(index)} {
			filters, err := m.traffic.Filters(at)
			errs = append(errs, err)
			for _, f := range filters {
				if f.Ours() && slices.Contains(netdevPrograms, f.Name) {
					found = append(found, Object{Name: f.Name + " of " + at.String(), Owner: "cell loader",
						Proof: "name, priority and handle", remove: func() error { return m.traffic.DeleteFilter(at) }})
				}
			}
		}
	}
	return found, errors.Join(errs...)
}

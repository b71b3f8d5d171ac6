package inventory

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/podlink"
	"github.com/waggle-net/waggle/pkg/tc"
)

// clsacts finds the queueing disciplines on links of ours, and the shared blocks by them. They go with their links: taken away
// alone they would leave a link whose packets nobody judges.
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
		o := Object{Name: "clsact of " + l.Attrs().Name, Owner: "cell loader", Proof: "on a link of ours", Note: "goes with its link"}
		if b := all[index]; b != (tc.Blocks{}) {
			o.Note = fmt.Sprintf("blocks %#x and %#x; goes with its link", b.Ingress, b.Egress)
		}
		found = append(found, o)
	}
	return found, err
}

// filters finds the programs in the shared blocks. A block, with its filters, ends with its last device; what is left after
// our links are gone stands in a block that somebody else's device has joined. It finds those on devices that lead out as well.
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
				Proof: "number of the block, priority and handle", Note: "goes with the last link of the block",
				remove: func() error { return m.traffic.DeleteFilter(at) }})
		}
	}
	others, err := m.netdevFilters()
	return append(found, others...), errors.Join(append(errs, err)...)
}

// netdevPrograms are the programs on devices that lead out of the node.
var netdevPrograms = []string{bpf.NetdevIngress, bpf.NetdevEgress, bpf.L3DevIngress, bpf.L3DevEgress}

// netdevFilters finds the programs on devices of others that lead out of the node, where the kernel has no tcx. The clsact
// stays: whether it was there before nobody knows, and an empty one does nothing.
func (m *Machine) netdevFilters() (found []Object, err error) {
	all, err := m.traffic.Clsacts()
	errs := []error{err}
	for _, index := range slices.Sorted(maps.Keys(all)) {
		if all[index] != (tc.Blocks{}) {
			continue
		}
		for _, at := range []tc.Place{tc.Ingress(index), tc.Egress(index)} {
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

package inventory

import (
	"errors"
	"fmt"
	"maps"
	"slices"

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
// our links are gone stands in a block that somebody else's device has joined.
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
	return found, errors.Join(errs...)
}

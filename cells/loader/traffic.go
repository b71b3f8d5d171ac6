package loader

import (
	"context"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/nftguard"
	"github.com/waggle-net/waggle/pkg/podlink"
	"github.com/waggle-net/waggle/pkg/rtnl"
	"github.com/waggle-net/waggle/pkg/tc"
)

// guardRule is the rule without which no pod link is attached. A link that waits for its deletion is covered as well.
func guardRule() nftguard.Rule {
	return nftguard.Rule{Groups: []uint32{podlink.Group, podlink.DeletedGroup}, Mark: podlink.MarkMagic, Mask: podlink.MarkMask}
}

// traffic implements podLinks with netlink, in the network namespace in which it was opened.
type traffic struct {
	tc      *tc.Handle
	links   *rtnl.Handle
	changes *tc.Changes
}

// Open implements podLinks.
func (t *traffic) Open() (err error) {
	if t.tc, err = tc.Open(); err != nil {
		return err
	}
	if t.links, err = rtnl.Open(); err != nil {
		t.tc.Close()
		return err
	}
	if t.changes, err = tc.OpenChanges(); err != nil {
		t.tc.Close()
		t.links.Close()
	}
	return err
}

// Close implements podLinks.
func (t *traffic) Close() {
	t.tc.Close()
	t.links.Close()
	t.changes.Close()
}

// Removed implements podLinks.
func (t *traffic) Removed(ctx context.Context) (gone []int, err error) {
	for len(gone) == 0 && err == nil {
		var changes []tc.Change
		changes, err = t.changes.Next(ctx)
		for _, c := range changes {
			if c.Clsact {
				gone = append(gone, c.Ifindex)
			}
		}
	}
	return gone, err
}

// Guard implements podLinks.
func (t *traffic) Guard() error {
	state, err := nftguard.Read(guardRule())
	if err != nil || state.Installed {
		return err
	}
	return nftguard.Install(guardRule())
}

// Hold implements podLinks.
func (t *traffic) Hold(ifindex int) error { return t.tc.EnsureClsact(ifindex, blocks()) }

// SetFilter implements podLinks.
func (t *traffic) SetFilter(block uint32, p *program) error { return t.setFilter(tc.Block(block), p) }

// setFilter replaces our filter at a place, unless it runs the program already.
func (t *traffic) setFilter(at tc.Place, p *program) error {
	id, found, err := t.filter(at)
	switch {
	case err != nil:
		return err
	case p == nil && !found:
		return fmt.Errorf("%s: %w", at, errNoFilter)
	case p == nil || found && id == p.ID:
		return nil
	}
	return t.tc.ReplaceFilter(at, p.Name, p.loaded.FD())
}

// filter finds the program that our filter at a place runs.
func (t *traffic) filter(at tc.Place) (id uint32, found bool, err error) {
	filters, err := t.tc.Filters(at)
	for _, f := range filters {
		if f.Ours() {
			return f.ProgramID, true, nil
		}
	}
	return 0, false, err
}

// Join implements podLinks.
func (t *traffic) Join(ifindex int, name string) error {
	link, err := t.links.LinkByIndex(ifindex)
	if err != nil {
		if rtnl.IsGone(err) {
			return fmt.Errorf("attach %s: no device has index %d: %w; delete the pod's sandbox and let it be made again",
				name, ifindex, errWrongDevice)
		}
		return fmt.Errorf("attach %s: %w", name, err)
	}
	if err := check(link.Attrs(), name); err != nil {
		return err
	}
	if err := t.tc.EnsureClsact(ifindex, blocks()); err != nil {
		return fmt.Errorf("attach %s: %w", name, err)
	}
	return t.up(link)
}

// check refuses a device that is not the one that the endpoint was made with.
func check(a *netlink.LinkAttrs, name string) error {
	switch {
	case a.Name != name:
		return fmt.Errorf("attach %s: the device with index %d is %s now: %w; delete the pod's sandbox and let it be made again",
			name, a.Index, a.Name, errWrongDevice)
	case a.Group == podlink.DeletedGroup:
		return fmt.Errorf("attach %s: it is being deleted: %w", name, errWrongDevice)
	}
	return nil
}

// up puts the link into the group that the nftables rule covers, takes ARP off it and sets it up, in this order.
func (t *traffic) up(link netlink.Link) error {
	a := link.Attrs()
	if a.Group != podlink.Group {
		if err := t.links.LinkSetGroup(link, int(podlink.Group)); err != nil {
			return fmt.Errorf("put %s into link group %#x: %w", a.Name, podlink.Group, err)
		}
	}
	if a.RawFlags&unix.IFF_NOARP == 0 {
		if err := t.links.LinkSetARPOff(link); err != nil {
			return fmt.Errorf("take ARP off %s: %w", a.Name, err)
		}
	}
	if a.RawFlags&unix.IFF_UP == 0 {
		if err := t.links.LinkSetUp(link); err != nil {
			return fmt.Errorf("set %s up: %w", a.Name, err)
		}
	}
	return nil
}

// Observe implements podLinks.
func (t *traffic) Observe() (o observed, err error) {
	guard, err1 := nftguard.Read(guardRule())
	o.Guard = guard.Installed
	var err2 error
	o.Blocks, err2 = t.tc.Clsacts()
	errs := []error{err1, err2}
	o.Filters = make(map[uint32]uint32)
	for _, block := range []uint32{podlink.IngressBlock, podlink.EgressBlock} {
		id, found, err := t.filter(tc.Block(block))
		if found {
			o.Filters[block] = id
		}
		errs = append(errs, err)
	}
	return o, errors.Join(errs...)
}

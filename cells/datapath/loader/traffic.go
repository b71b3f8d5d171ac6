package loader

import (
	"context"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/nftguard"
	"github.com/waggle-net/waggle/pkg/datapath/rtnl"
	"github.com/waggle-net/waggle/pkg/datapath/tc"
	"github.com/waggle-net/waggle/pkg/podlink"
)

// traffic implements podLinks with netlink, in the network namespace in which it was opened.
type traffic struct {
	tc      *tc.Handle
	links   *rtnl.Handle
	changes *tc.Changes
	rules   *nftguard.Changes
	guard   guard
	steps   steps
}

// Open implements podLinks.
func (t *traffic) Open() error {
	var err1, err2, err3, err4 error
	t.tc, err1 = tc.Open()
	t.links, err2 = rtnl.Open()
	t.changes, err3 = tc.OpenChanges()
	t.rules, err4 = nftguard.OpenChanges()
	err := errors.Join(err1, err2, err3, err4)
	if err != nil {
		t.Close()
	}
	return err
}

// Close implements podLinks.
func (t *traffic) Close() {
	if t.tc != nil {
		t.tc.Close()
	}
	if t.links != nil {
		t.links.Close()
	}
	if t.changes != nil {
		t.changes.Close()
	}
	if t.rules != nil {
		t.rules.Close()
	}
}

// Changed implements podLinks.
func (t *traffic) Changed(ctx context.Context) ([]tc.Change, error) { return t.changes.Next(ctx) }

// RuleChanged implements podLinks.
func (t *traffic) RuleChanged(ctx context.Context) error { return t.rules.Next(ctx) }

// Hold implements podLinks.
func (t *traffic) Hold(ifindex int) error { return t.tc.EnsureClsact(ifindex, blocks()) }

// SetFilter implements podLinks. The steps of a program are pinned before the first packet enters the program, and until the last packet has left it. On a
// read-only BPF file system the steps end with the agent.
func (t *traffic) SetFilter(block uint32, p *program) error {
	at := tc.Block(block)
	if p == nil || p.steps == nil {
		return t.setFilter(at, p)
	}
	unpinned := t.steps.pin(p)
	if unpinned != nil && !errors.Is(unpinned, unix.EROFS) {
		return unpinned
	}
	if err := t.setFilter(at, p); err != nil || unpinned != nil {
		return err
	}
	return t.steps.unpinUnused(p)
}

// setFilter replaces Waggle's filter at a place, unless it runs the program already.
func (t *traffic) setFilter(at tc.AttachPoint, p *program) error {
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

// filter returns the id of the program that Waggle's filter at a place runs.
func (t *traffic) filter(at tc.AttachPoint) (id uint32, found bool, err error) {
	filters, err := t.tc.Filters(at)
	id, found, _ = ours(filters)
	return id, found, err
}

// Join implements podLinks.
func (t *traffic) Join(ifindex int, name string, mtu int) error {
	link, err := t.links.LinkByIndex(ifindex)
	if err != nil {
		if rtnl.IsGone(err) {
			return fmt.Errorf("attach %s: no device has index %d: %w; delete the pod's sandbox, which kubelet recreates",
				name, ifindex, errWrongDevice)
		}
		return fmt.Errorf("attach %s: %w", name, err)
	}
	if renamed(link, name) {
		if err := t.links.Rename(link, name); err != nil {
			return fmt.Errorf("attach %s: %w", name, err)
		}
		link.Attrs().Name = name
	}
	if err := check(link.Attrs(), name); err != nil {
		return err
	}
	if mtu != 0 && link.Attrs().MTU != mtu {
		if err := t.links.LinkSetMTU(link, mtu); err != nil {
			return fmt.Errorf("attach %s: set MTU %d: %w", name, mtu, err)
		}
	}
	if err := t.tc.EnsureClsact(ifindex, blocks()); err != nil {
		return fmt.Errorf("attach %s: %w", name, err)
	}
	return t.up(link)
}

// renamed reports whether another program has renamed a pod link. The link must be in the group of pod links, which it has from its creation, and its name must
// not be a name of a pod link, because such a link may belong to another endpoint.
func renamed(link netlink.Link, name string) bool {
	a := link.Attrs()
	return a.Name != name && a.Group == podlink.Group && link.Type() == "veth" && !podlink.IsHostName(a.Name)
}

// check returns an error if the device is not the one that the endpoint was created with.
func check(a *netlink.LinkAttrs, name string) error {
	switch {
	case a.Name != name:
		return fmt.Errorf("attach %s: the device with index %d is %s now: %w; delete the pod's sandbox, which kubelet recreates",
			name, a.Index, a.Name, errWrongDevice)
	case a.Group == podlink.DeletedGroup:
		return fmt.Errorf("attach %s: it is being deleted: %w", name, errWrongDevice)
	}
	return nil
}

// up puts the link into the group that the nftables rules cover, disables ARP on it and sets it up, in this order.
func (t *traffic) up(link netlink.Link) error {
	a := link.Attrs()
	if a.Group != podlink.Group {
		if err := t.links.LinkSetGroup(link, int(podlink.Group)); err != nil {
			return fmt.Errorf("put %s into link group %#x: %w", a.Name, podlink.Group, err)
		}
	}
	// With one message, the kernel would notify IPv6 of another change of a link that is up and has no carrier yet, and walk the routes of all links. With 200
	// pods that takes 0.3 ms; a message takes 0.02 ms.
	for _, flag := range []uint32{unix.IFF_NOARP, unix.IFF_UP} {
		if a.RawFlags&flag != 0 {
			continue
		}
		if err := t.tc.AddLinkFlags(a.Index, flag); err != nil {
			return fmt.Errorf("disable ARP on %s and set it up: %w", a.Name, err)
		}
	}
	return nil
}

// Observe implements podLinks.
func (t *traffic) Observe() (o observed, err error) {
	state, err1 := t.guard.read()
	o.Guard, o.Dropped, o.Unchecked = state.Installed, state.Dropped, t.guard.reason()
	var err2 error
	o.Blocks, err2 = t.tc.Clsacts()
	errs := []error{err1, err2}
	o.Filters, o.Unpinned = make(map[uint32]uint32), make(map[uint32]error)
	for _, block := range []uint32{podlink.IngressBlock, podlink.EgressBlock} {
		at := tc.Block(block)
		filters, err := t.tc.Filters(at)
		errs = append(errs, err)
		id, found, ahead := ours(filters)
		if !found {
			continue
		}
		o.Filters[block] = id
		if block == podlink.IngressBlock {
			o.Unpinned[block] = t.steps.missing(bpf.PodEgress, id)
		}
		for _, f := range ahead {
			o.Ahead = append(o.Ahead, fmt.Sprintf("%s: %s filter with priority %d and handle %#x", at, f.Kind, f.Priority, f.Handle))
		}
	}
	return o, errors.Join(errs...)
}

// ours finds Waggle's filter in a list of filters, and returns the filters that run before it.
func ours(filters []tc.Filter) (id uint32, found bool, ahead []tc.Filter) {
	for i, f := range filters {
		if f.Ours() {
			return f.ProgramID, true, filters[:i]
		}
	}
	return 0, false, nil
}

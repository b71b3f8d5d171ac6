package basedevices

import (
	"errors"
	"net"
	"net/netip"

	"github.com/cilium/hive/cell"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/datapath/rtnl"
)

// end is the state of one end of a pair in the kernel.
type end struct {
	Index     int
	Type      string // "veth", ...
	PeerIndex int    // 0 when the peer is in another namespace
	MTU       int
	Up        bool
	NoARP     bool
	Addresses []netip.Prefix // with a scope wider than link; the kernel's link-local addresses are excluded
}

// kernel has the netlink requests of the reconciler. It addresses links by name.
type kernel interface {
	Get(name string) (e end, found bool, err error)
	Create(name, peer string) error // both ends are down
	// Rename renames a link. A missing link, or one that already has the name, is not an error. A link that is up is set down first if the kernel requires that
	// (before Linux 6.3).
	Rename(index int, name string) error
	Set(name string, want end) error
	AddAddress(name string, a netip.Prefix) error
	DeleteAddress(name string, a netip.Prefix) error
}

// netlinkKernel implements [kernel].
type netlinkKernel struct{ handle *rtnl.Handle }

func newKernel(lc cell.Lifecycle) kernel {
	k := &netlinkKernel{}
	lc.Append(cell.Hook{
		OnStart: func(cell.HookContext) (err error) { k.handle, err = rtnl.Open(); return err },
		OnStop:  func(cell.HookContext) error { k.handle.Close(); return nil },
	})
	return k
}

func (k *netlinkKernel) Get(name string) (end, bool, error) {
	link, err := k.handle.LinkByName(name)
	if err != nil {
		if rtnl.IsGone(err) {
			return end{}, false, nil
		}
		return end{}, false, err
	}
	a := link.Attrs()
	if a.Name != name { // found by an alternative name: a foreign link
		return end{}, false, errors.New("another link has it as an alternative name: remove that name from " + a.Name)
	}
	e := end{Index: a.Index, Type: link.Type(), PeerIndex: a.ParentIndex, MTU: a.MTU,
		Up: a.RawFlags&unix.IFF_UP != 0, NoARP: a.RawFlags&unix.IFF_NOARP != 0}
	addrs, err := k.handle.AddressesOf(link)
	if err != nil {
		return end{}, false, err
	}
	for _, addr := range addrs {
		if addr.Scope < unix.RT_SCOPE_LINK {
			ones, _ := addr.Mask.Size()
			ip, _ := netip.AddrFromSlice(addr.IP)
			e.Addresses = append(e.Addresses, netip.PrefixFrom(ip.Unmap(), ones))
		}
	}
	return e, true, nil
}

func (k *netlinkKernel) Create(name, peer string) error {
	return k.handle.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name, TxQLen: 1000}, PeerName: peer})
}

func (k *netlinkKernel) Rename(index int, name string) error {
	link, err := k.handle.LinkByIndex(index)
	if err != nil {
		if rtnl.IsGone(err) {
			return nil
		}
		return err
	}
	return k.handle.Rename(link, name)
}

func (k *netlinkKernel) Set(name string, want end) error {
	link, err := k.handle.LinkByName(name)
	if err != nil {
		return err
	}
	a := link.Attrs()
	if want.MTU != 0 && a.MTU != want.MTU {
		err = errors.Join(err, k.handle.LinkSetMTU(link, want.MTU))
	}
	if want.NoARP && a.RawFlags&unix.IFF_NOARP == 0 {
		err = errors.Join(err, k.handle.LinkSetARPOff(link))
	}
	switch up := a.RawFlags&unix.IFF_UP != 0; {
	case want.Up && !up:
		err = errors.Join(err, k.handle.LinkSetUp(link))
	case up && !want.Up:
		err = errors.Join(err, k.handle.LinkSetDown(link))
	}
	return err
}

func (k *netlinkKernel) AddAddress(name string, p netip.Prefix) error {
	link, err := k.handle.LinkByName(name)
	if err != nil {
		return err
	}
	return k.handle.AddrReplace(link, address(p))
}

func (k *netlinkKernel) DeleteAddress(name string, p netip.Prefix) error {
	link, err := k.handle.LinkByName(name)
	if err == nil {
		err = k.handle.AddrDel(link, address(p))
	}
	if err != nil && !rtnl.IsGone(err) {
		return err
	}
	return nil
}

func address(p netip.Prefix) *netlink.Addr {
	a := &netlink.Addr{IPNet: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}}
	if p.Addr().Is6() {
		a.Flags = unix.IFA_F_NODAD // usable at once; no other host is on this link
	}
	return a
}

package rtnl

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Rename renames a link unless it has the name already. Before Linux 6.3 the kernel renames only links that are down; there Rename sets the link down for a
// moment, which removes its routes.
func (h *Handle) Rename(link netlink.Link, name string) error {
	a := link.Attrs()
	if a.Name == name {
		return nil
	}
	err := h.LinkSetName(link, name)
	if errors.Is(err, unix.EBUSY) && a.RawFlags&unix.IFF_UP != 0 {
		if err = h.LinkSetDown(link); err == nil {
			err = errors.Join(h.LinkSetName(link, name), h.LinkSetUp(link))
		}
	}
	if err != nil {
		return fmt.Errorf("rename %s to %s: %w", a.Name, name, err)
	}
	return nil
}

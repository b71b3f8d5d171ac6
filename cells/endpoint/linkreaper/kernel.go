package linkreaper

import (
	"fmt"

	"github.com/cilium/hive/cell"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/datapath/rtnl"
)

// member is one link of a group.
type member struct {
	Index int
	Name  string
	Type  string
}

// kernel has the netlink requests of this cell. The deletion of a missing link is not an error.
type kernel interface {
	Members(group uint32) ([]member, error)
	// Member returns the link with this index if it is in the group.
	Member(group uint32, index int) ([]member, error)
	DeleteGroup(group uint32) error
	DeleteLink(index int) error
}

// netlinkKernel implements [kernel].
type netlinkKernel struct {
	handle *rtnl.Handle
	// sockets are for the request to delete a group, which package netlink does not support.
	sockets map[int]*nl.SocketHandle
}

func newKernel(lc cell.Lifecycle) kernel {
	k := &netlinkKernel{}
	lc.Append(cell.Hook{
		OnStart: func(cell.HookContext) error { return k.open() },
		OnStop:  func(cell.HookContext) error { k.close(); return nil },
	})
	return k
}

func (k *netlinkKernel) open() error {
	socket, err := nl.GetNetlinkSocketAt(netns.None(), netns.None(), unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open a route netlink socket: %w", err)
	}
	k.sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: {Socket: socket}}
	if k.handle, err = rtnl.Open(); err != nil {
		socket.Close()
		return err
	}
	return nil
}

func (k *netlinkKernel) close() {
	k.handle.Close()
	k.sockets[unix.NETLINK_ROUTE].Close()
}

func (k *netlinkKernel) Members(group uint32) ([]member, error) {
	links, err := k.handle.Links()
	return membersOf(group, links), err
}

func (k *netlinkKernel) Member(group uint32, index int) ([]member, error) {
	link, err := k.handle.LinkByIndex(index)
	switch {
	case err == nil:
		return membersOf(group, []netlink.Link{link}), nil
	case rtnl.IsGone(err):
		return nil, nil
	}
	return nil, fmt.Errorf("read link %d: %w", index, err)
}

func membersOf(group uint32, links []netlink.Link) (members []member) {
	for _, l := range links {
		if a := l.Attrs(); a.Group == group {
			members = append(members, member{a.Index, a.Name, l.Type()})
		}
	}
	return members
}

func (k *netlinkKernel) DeleteGroup(group uint32) error {
	req := nl.NewNetlinkRequest(unix.RTM_DELLINK, unix.NLM_F_ACK)
	req.Sockets = k.sockets
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	req.AddData(nl.NewRtAttr(unix.IFLA_GROUP, nl.Uint32Attr(group)))
	if _, err := req.Execute(unix.NETLINK_ROUTE, 0); err != nil && !rtnl.IsGone(err) {
		return err
	}
	return nil
}

func (k *netlinkKernel) DeleteLink(index int) error {
	err := k.handle.LinkDel(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: index}})
	if err != nil && !rtnl.IsGone(err) {
		return err
	}
	return nil
}

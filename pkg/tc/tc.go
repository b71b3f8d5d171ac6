// Package tc attaches programs to traffic control: clsact queueing disciplines whose two hooks share blocks of filters
// between devices, and cls_bpf filters on such a block or on one device.
//
// A device joins both blocks with one message, and replacing the filter of a block changes the program of all its
// devices at once. A block lives as long as its last device.
package tc

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Handle talks to one network namespace, that of the thread that opened it. Its methods may be called from any
// goroutine; they wait for each other.
type Handle struct{ sockets map[int]*nl.SocketHandle }

// Open opens a socket in the network namespace of the moment.
func Open() (*Handle, error) {
	s, err := nl.GetNetlinkSocketAt(netns.None(), netns.None(), unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket for traffic control: %w", err)
	}
	return &Handle{map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: {Socket: s}}}, nil
}

// Close ends the handle.
func (h *Handle) Close() {
	for _, s := range h.sockets {
		s.Close()
	}
}

// dumpAttempts bounds how often a dump that was interrupted by a change is begun again.
const dumpAttempts = 10

// request sends one message and returns the answers. A dump that met a change is repeated, because it may lack rows.
func (h *Handle) request(kind, flags int, answer uint16, parts ...nl.NetlinkRequestData) ([][]byte, error) {
	for attempt := 1; ; attempt++ {
		req := nl.NewNetlinkRequest(kind, flags)
		req.Sockets = h.sockets
		for _, p := range parts {
			req.AddData(p)
		}
		msgs, err := req.Execute(unix.NETLINK_ROUTE, answer)
		if errors.Is(err, netlink.ErrDumpInterrupted) && attempt < dumpAttempts {
			continue
		}
		return msgs, err
	}
}

// AddLinkFlags gives a link flags (IFF_UP and others) that it lacks, all in one message.
func (h *Handle) AddLinkFlags(ifindex int, flags uint32) error {
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index, msg.Flags, msg.Change = int32(ifindex), flags, flags
	_, err := h.request(unix.RTM_SETLINK, unix.NLM_F_ACK, 0, msg)
	return err
}

// tcMsg addresses a place in traffic control.
func tcMsg(ifindex int32, parent, handle, info uint32) *nl.TcMsg {
	return &nl.TcMsg{Family: unix.AF_UNSPEC, Ifindex: ifindex, Parent: parent, Handle: handle, Info: info}
}

// gone tells whether err means that the device, the qdisc or the filter is not there. A device without its qdisc says
// EINVAL or ENOENT, one without its block EINVAL, depending on what is missing first.
func gone(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EINVAL)
}

// Package tc attaches programs to traffic control: clsact queueing disciplines whose two hooks share blocks of filters between devices, and cls_bpf filters
// of such a block or of one device.
//
// A device joins both blocks with one message, and replacing the filter of a block changes the program of all its devices at once. The kernel deletes a block
// with its last device.
package tc

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Handle is a connection to one network namespace, the namespace of the thread that opened it. Its methods may be called from any goroutine; they run one at
// a time.
type Handle struct{ sockets map[int]*nl.SocketHandle }

// Open opens a socket in the network namespace of the calling thread.
func Open() (*Handle, error) {
	s, err := nl.GetNetlinkSocketAt(netns.None(), netns.None(), unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket for traffic control: %w", err)
	}
	return &Handle{map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: {Socket: s}}}, nil
}

// Close closes the sockets.
func (h *Handle) Close() {
	for _, s := range h.sockets {
		s.Close()
	}
}

// dumpAttempts limits the attempts of a dump that a concurrent change interrupts.
const dumpAttempts = 10

// request sends one message and returns the responses. It repeats a dump that was interrupted by a change, because that dump may lack rows.
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

// AddLinkFlags sets the missing link flags (IFF_UP and others) of a link, all in one message.
func (h *Handle) AddLinkFlags(ifindex int, flags uint32) error {
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index, msg.Flags, msg.Change = int32(ifindex), flags, flags
	_, err := h.request(unix.RTM_SETLINK, unix.NLM_F_ACK, 0, msg)
	return err
}

// tcMsg returns the header of a traffic control message.
func tcMsg(ifindex int32, parent, handle, info uint32) *nl.TcMsg {
	return &nl.TcMsg{Family: unix.AF_UNSPEC, Ifindex: ifindex, Parent: parent, Handle: handle, Info: info}
}

// gone reports whether err means that the device, the qdisc or the filter does not exist. For a device without a qdisc the kernel returns EINVAL or ENOENT,
// and for one without a block EINVAL, depending on the first missing object.
func gone(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EINVAL)
}

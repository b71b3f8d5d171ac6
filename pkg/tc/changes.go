package tc

import (
	"context"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Changes listens for devices that lose their clsact, and for places whose filters change.
type Changes struct{ socket *nl.NetlinkSocket }

// Change is one announcement. What this process does is announced as well.
type Change struct {
	Ifindex int    // of the device; 0 when it is about a shared block
	Block   uint32 // number of the block whose filters have changed; 0 when it is about a device
	Clsact  bool   // the device has lost its clsact; otherwise its filters have changed
}

// ErrLost means that announcements were lost: anything may have changed.
var ErrLost = errors.New("announcements of traffic control were lost")

// OpenChanges begins to listen in the network namespace of the calling thread.
func OpenChanges() (*Changes, error) {
	socket, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_TC)
	if err != nil {
		return nil, fmt.Errorf("listen for changes of traffic control: %w", err)
	}
	return &Changes{socket}, nil
}

// Close ends the listening.
func (c *Changes) Close() { c.socket.Close() }

// Next waits for changes. When ctx ends the socket is closed as well.
func (c *Changes) Next(ctx context.Context) ([]Change, error) {
	defer context.AfterFunc(ctx, c.socket.Close)()
	for {
		msgs, _, err := c.socket.Receive()
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case errors.Is(err, unix.ENOBUFS):
			return nil, ErrLost
		case err != nil:
			return nil, fmt.Errorf("read changes of traffic control: %w", err)
		}
		var changes []Change
		for _, m := range msgs {
			if change, ok := parseChange(m.Header.Type, m.Data); ok {
				changes = append(changes, change)
			}
		}
		if len(changes) > 0 {
			return changes, nil
		}
	}
}

// parseChange reads one announcement; ok is false for what nobody waits for, such as a clsact that is new.
func parseChange(kind uint16, m []byte) (change Change, ok bool) {
	if len(m) < nl.SizeofTcMsg {
		return Change{}, false
	}
	switch kind {
	case unix.RTM_DELQDISC:
		ifindex, _, ok := parseClsact(m)
		return Change{Ifindex: ifindex, Clsact: true}, ok
	case unix.RTM_NEWTFILTER, unix.RTM_DELTFILTER, unix.RTM_DELCHAIN:
		head := nl.DeserializeTcMsg(m)
		if head.Ifindex == blockIfindex {
			return Change{Block: head.Parent}, true
		}
		return Change{Ifindex: int(head.Ifindex)}, true
	}
	return Change{}, false
}

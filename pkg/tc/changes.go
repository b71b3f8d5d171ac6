package tc

import (
	"context"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/rtnl"
)

// Changes listens for devices that lose their clsact, and for places whose filters change.
type Changes struct{ listener *rtnl.Listener }

// Change is one announcement. What this process does is announced as well.
type Change struct {
	Ifindex int    // of the device; 0 when it is about a shared block
	Block   uint32 // number of the block whose filters have changed; 0 when it is about a device
	Clsact  bool   // the device has lost its clsact; otherwise its filters have changed
}

// OpenChanges begins to listen in the network namespace of the calling thread.
func OpenChanges() (*Changes, error) {
	listener, err := rtnl.Listen("traffic control", unix.NETLINK_ROUTE, unix.RTNLGRP_TC)
	if err != nil {
		return nil, err
	}
	return &Changes{listener}, nil
}

// Close ends the listening.
func (c *Changes) Close() { c.listener.Close() }

// Next is [rtnl.Listener.Next] for changes.
func (c *Changes) Next(ctx context.Context) (changes []Change, err error) {
	for len(changes) == 0 {
		msgs, err := c.listener.Next(ctx)
		if err != nil {
			return nil, err
		}
		for _, m := range msgs {
			if change, ok := parseChange(m.Header.Type, m.Data); ok {
				changes = append(changes, change)
			}
		}
	}
	return changes, nil
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

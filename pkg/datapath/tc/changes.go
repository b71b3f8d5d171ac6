package tc

import (
	"context"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/datapath/rtnl"
)

// Changes listens for devices that lose their clsact, and for changes of filters.
type Changes struct{ listener *rtnl.Listener }

// Change is one notification. Changes by this process are reported as well.
type Change struct {
	Ifindex int    // device; 0 for a shared block
	Block   uint32 // number of the block whose filters changed; 0 for a device
	Clsact  bool   // the device lost its clsact; otherwise its filters changed
}

// OpenChanges starts to listen in the network namespace of the calling thread.
func OpenChanges() (*Changes, error) {
	listener, err := rtnl.Listen("traffic control", unix.NETLINK_ROUTE, unix.RTNLGRP_TC)
	if err != nil {
		return nil, err
	}
	return &Changes{listener}, nil
}

// Close closes the listener.
func (c *Changes) Close() { c.listener.Close() }

// Next is [rtnl.Listener.Next], with parsed changes.
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

// parseChange parses one notification; ok is false for irrelevant changes such as a new clsact.
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

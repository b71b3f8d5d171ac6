package tc

import (
	"context"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Removals listens for devices that lose their clsact.
type Removals struct{ socket *nl.NetlinkSocket }

// ErrLost means that announcements were lost: any device may have lost its clsact.
var ErrLost = errors.New("announcements of traffic control were lost")

// OpenRemovals begins to listen in the network namespace of the calling thread.
func OpenRemovals() (*Removals, error) {
	socket, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_TC)
	if err != nil {
		return nil, fmt.Errorf("listen for changes of traffic control: %w", err)
	}
	return &Removals{socket}, nil
}

// Close ends the listening.
func (r *Removals) Close() { r.socket.Close() }

// Next waits for devices that have lost their clsact. When ctx ends the socket is closed as well.
func (r *Removals) Next(ctx context.Context) ([]int, error) {
	defer context.AfterFunc(ctx, r.socket.Close)()
	for {
		msgs, _, err := r.socket.Receive()
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case errors.Is(err, unix.ENOBUFS):
			return nil, ErrLost
		case err != nil:
			return nil, fmt.Errorf("read changes of traffic control: %w", err)
		}
		var gone []int
		for _, m := range msgs {
			if m.Header.Type != unix.RTM_DELQDISC {
				continue
			}
			if ifindex, _, ok := parseClsact(m.Data); ok {
				gone = append(gone, ifindex)
			}
		}
		if len(gone) > 0 {
			return gone, nil
		}
	}
}

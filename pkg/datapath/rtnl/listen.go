package rtnl

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Listener receives the raw notifications that the kernel sends to netlink groups.
type Listener struct {
	socket *nl.NetlinkSocket
	what   string
}

// ErrLost means that notifications were lost: any object may have changed.
var ErrLost = errors.New("notifications of the kernel were lost")

// Listen subscribes to groups in the network namespace of the calling thread. what names the objects in errors.
func Listen(what string, protocol int, groups ...uint) (*Listener, error) {
	socket, err := nl.Subscribe(protocol, groups...)
	if err != nil {
		return nil, fmt.Errorf("listen for changes of %s: %w", what, err)
	}
	return &Listener{socket, what}, nil
}

// Close closes the socket.
func (l *Listener) Close() { l.socket.Close() }

// Next waits for notifications, including notifications of changes by this process. It returns [ErrLost] if some were lost. The end of ctx closes the listener.
func (l *Listener) Next(ctx context.Context) ([]syscall.NetlinkMessage, error) {
	defer context.AfterFunc(ctx, l.socket.Close)()
	msgs, _, err := l.socket.Receive()
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case errors.Is(err, unix.ENOBUFS):
		return nil, ErrLost
	case err != nil:
		return nil, fmt.Errorf("read changes of %s: %w", l.what, err)
	}
	return msgs, nil
}

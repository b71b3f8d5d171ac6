package rtnl

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Listener reads what the kernel announces to groups of netlink, raw.
type Listener struct {
	socket *nl.NetlinkSocket
	what   string
}

// ErrLost means that announcements were lost: anything may have changed.
var ErrLost = errors.New("announcements of the kernel were lost")

// Listen begins to listen for changes of what, in the network namespace of the calling thread.
func Listen(what string, protocol int, groups ...uint) (*Listener, error) {
	socket, err := nl.Subscribe(protocol, groups...)
	if err != nil {
		return nil, fmt.Errorf("listen for changes of %s: %w", what, err)
	}
	return &Listener{socket, what}, nil
}

// Close ends the listening.
func (l *Listener) Close() { l.socket.Close() }

// Next waits for announcements, those of what this process changes included; [ErrLost] when some were lost. When ctx ends the
// listener is closed as well.
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

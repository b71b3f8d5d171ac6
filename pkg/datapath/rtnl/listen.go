package rtnl

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Listener receives the raw notifications that the kernel sends to netlink groups.
type Listener struct {
	socket socket
	what   string
	lost   bool // a notification may be lost, because the last call of Next returned an error other than [ErrLost]
}

// socket is [nl.NetlinkSocket], except in tests.
type socket interface {
	Receive() ([]syscall.NetlinkMessage, *unix.SockaddrNetlink, error)
	SetReceiveTimeout(*unix.Timeval) error
	Close()
}

// ErrLost means that notifications were lost: any object may have changed.
var ErrLost = errors.New("notifications of the kernel were lost")

// Listen subscribes to groups in the network namespace of the calling thread. what names the objects in errors.
func Listen(what string, protocol int, groups ...uint) (*Listener, error) {
	socket, err := nl.Subscribe(protocol, groups...)
	if err != nil {
		return nil, fmt.Errorf("listen for changes of %s: %w", what, err)
	}
	return &Listener{socket: socket, what: what}, nil
}

// Close closes the socket.
func (l *Listener) Close() { l.socket.Close() }

// probe is the maximum time for which [Listener.Next] waits for a notification after an error. If none arrives, the socket works.
const probe = 100 * time.Millisecond

// Next waits for notifications, including notifications of changes by this process. It returns [ErrLost] if some were lost. After another error some may be lost
// too: the first call for which the socket works again returns ErrLost without waiting for the next notification. The end of ctx closes the listener.
func (l *Listener) Next(ctx context.Context) ([]syscall.NetlinkMessage, error) {
	defer context.AfterFunc(ctx, l.socket.Close)()
	msgs, err := l.receive()
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case errors.Is(err, unix.ENOBUFS), l.lost && (err == nil || errors.Is(err, unix.EAGAIN)):
		l.lost = false
		return nil, ErrLost
	case err != nil:
		l.lost = true
		return nil, fmt.Errorf("read changes of %s: %w", l.what, err)
	}
	return msgs, nil
}

// receive waits for notifications, after an error only briefly.
func (l *Listener) receive() ([]syscall.NetlinkMessage, error) {
	var timeout unix.Timeval // none
	if l.lost {
		timeout = unix.NsecToTimeval(probe.Nanoseconds())
	}
	if err := l.socket.SetReceiveTimeout(&timeout); err != nil {
		return nil, err
	}
	msgs, _, err := l.socket.Receive()
	return msgs, err
}

package load

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/test/nodekit"
)

const (
	floodPause = 10 * time.Millisecond  // between two bursts
	floodDebt  = 100 * time.Millisecond // maximum backlog after a time without a CPU, as sending time; the excess is skipped
)

// Flood sends frames on a device of a place cyclically, perSecond of them, until ctx ends, and returns the number of sent frames. A device whose queue is
// full drops frames. The turn may be shared: [Load.Turn] is for a flood beside a load.
func (*Turn) Flood(ctx context.Context, from nodekit.NetNS, device string, perSecond int, frames [][]byte) (sent int, err error) {
	err = from.Do(func() error {
		fd, err := sendSocket(device)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		ticker := time.NewTicker(floodPause)
		defer ticker.Stop()
		last, due := time.Now(), time.Duration(0)
		for each := time.Second / time.Duration(perSecond); ; {
			now := time.Now()
			due += min(now.Sub(last), floodDebt)
			last = now
			for ; due >= each && ctx.Err() == nil; due -= each {
				if _, err := unix.Write(fd, frames[sent%len(frames)]); err != nil && !errors.Is(err, unix.ENOBUFS) {
					return fmt.Errorf("flood %s: %w", device, err)
				}
				sent++
			}
			select {
			case <-ctx.Done():
				return nil
			case <-ticker.C:
			}
		}
	})
	return sent, err
}

// sendSocket opens a packet socket on a device in the calling thread's namespace. It has no protocol, so that it receives no frames.
func sendSocket(device string) (int, error) {
	link, err := net.InterfaceByName(device)
	if err != nil {
		return -1, err
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open a packet socket: %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Ifindex: link.Index}); err != nil {
		return -1, errors.Join(fmt.Errorf("bind a packet socket to %s: %w", device, err), unix.Close(fd))
	}
	return fd, nil
}

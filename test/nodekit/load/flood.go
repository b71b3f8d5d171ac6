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
	floodDebt  = 100 * time.Millisecond // frames of so much time are sent later when the thread had no CPU; more are left out
)

// Flood puts frames onto a device of a place, the last followed by the first again, perSecond of them until ctx ends, and returns how many were sent.
// A device whose queue is full loses some. The turn need not be the flood's alone: [Load.Turn] is for a flood beside a load.
func (*Turn) Flood(ctx context.Context, from nodekit.Place, device string, perSecond int, frames [][]byte) (sent int, err error) {
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

// sendSocket opens a packet socket on a device of the calling thread's namespace. It has no protocol, so that it is handed no frames.
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
